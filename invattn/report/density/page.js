"use strict";
// Density: curves of all runs over each other, and the samples of one step beside each other.
(() => {
  const { byId, data, run, withCommas, drawCharts, keepDrawn } = page;

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
    byId("training-section").hidden = data.charts.length === 0;
    keepDrawn(() => drawCharts(["by-steps", "by-time", "gradient", "largest"], data.charts));
  };

  run(start);
})();
