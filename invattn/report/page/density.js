"use strict";
// Density: curves of all runs over each other, and the samples of one step beside each other.
(() => {
  const { byId, data, run, withCommas, colour, seriesColour, drawChart, powerTicks, prepareCharts } = page;

  // ---- charts

  const points = (curve, axis, key) => curve[axis].map((x, i) => ({ x, y: curve[key][i] })).filter(({ x, y }) => x !== null && y !== null && (axis !== "seconds" || x > 0));

  const lines = (axis, key) => data.runs.map(({ label, training }, i) => ({
    label, data: points(training, axis, key), borderColor: seriesColour(i), backgroundColor: seriesColour(i),
  }));

  const looks = (axis) => data.runs.map(({ label, looks: curve }, i) => ({
    label: "", name: label + ", held out", data: points(curve, axis, "bits"),
    borderColor: seriesColour(i), backgroundColor: seriesColour(i), borderDash: [3, 3], borderWidth: 1, pointRadius: 3.5,
  }));

  // The first steps of a training are far above the rest: most of the curve should be seen, and every held-out figure.
  const range = () => {
    const values = data.runs.flatMap(({ training }) => training.bits).filter((value) => value !== null).sort((a, b) => a - b);
    const heldOut = data.runs.flatMap(({ looks: curve }) => curve.bits).filter((value) => value !== null);
    if (values.length < 2) return {};
    const [low, high] = [Math.min(values[0], ...heldOut), Math.max(values[Math.ceil(0.96 * values.length) - 1], ...heldOut)];
    const power = 10 ** Math.floor(Math.log10(Math.max(high - low, 1e-3)));
    const step = (high - low) / power < 2 ? power / 5 : (high - low) / power < 5 ? power / 2 : power;  // round ends, so that the ticks are
    return { min: Math.floor(low / step) * step, max: Math.ceil(high / step) * step };
  };

  const shortTicks = { callback: (value) => Number(Number(value).toPrecision(4)) };

  const showCharts = () => {
    prepareCharts();
    const several = data.runs.length > 1;
    const printed = data.printed ? [{ axis: "y", value: 3.45, label: "i-ResNet, printed: 3.45", dashed: true, shade: colour("--soft") }] : [];
    for (const [id, axis, type] of [["by-steps", "steps", "linear"], ["by-time", "seconds", "logarithmic"]]) {
      drawChart(id, [...lines(axis, "bits"), ...looks(axis)], {
        x: { title: axis, type, ticks: type === "linear" ? { precision: 0 } : powerTicks },
        y: { title: data.unit, more: range(), ticks: shortTicks },
        lines: printed, legend: several,
      });
    }
    drawChart("gradient", lines("steps", "gradient_norm"), {
      x: { title: "steps", ticks: { precision: 0 } }, y: { title: "norm of the gradient", type: "logarithmic", ticks: shortTicks }, legend: several,
    });
    const largest = lines("steps", "largest").filter((set) => set.data.some(({ y }) => y > 0));
    byId("largest-card").hidden = largest.length === 0;
    if (largest.length === 0) return;
    drawChart("largest", largest, {
      x: { title: "steps", ticks: { precision: 0 } }, y: { title: "largest local constant", more: { suggestedMin: 0, suggestedMax: 1.05 } },
      lines: [{ axis: "y", value: 1, label: "1", shade: colour("--ink") }], legend: several,
    });
  };

  // ---- samples

  // Each run's last picture at or before the step; its first where it has none so early.
  const showSamples = (step) => {
    for (const figure of document.querySelectorAll(".sample")) {
      const pictures = [...figure.querySelectorAll("img")];
      const shown = pictures.filter((picture) => Number(picture.dataset.step) <= step).pop() || pictures[0];
      for (const picture of pictures) picture.hidden = picture !== shown;
    }
    const words = "After " + withCommas(step) + (step === 1 ? " step." : " steps.");
    byId("when-caption").textContent = words;
    byId("when").setAttribute("aria-valuetext", words);
  };

  const start = () => {
    const slider = byId("when");
    const steps = slider.dataset.steps === "" ? [] : slider.dataset.steps.split(",").map(Number);
    byId("samples-card").hidden = steps.length === 0;
    slider.hidden = steps.length < 2;
    slider.max = String(Math.max(steps.length - 1, 0));
    slider.value = slider.max;
    slider.addEventListener("input", () => showSamples(steps[Number(slider.value)]));
    if (steps.length > 0) showSamples(steps[steps.length - 1]);
    byId("training-section").hidden = !data.runs.some(({ training }) => training.steps.length > 0);
    if (byId("training-section").hidden) return;
    run(showCharts);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => run(showCharts));
  };

  run(start);
})();
