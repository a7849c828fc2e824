"use strict";
// A study: differences between arms with their errors, and the held-out curves of all trainings.
(() => {
  const { byId, data, run, colour, seriesColour, drawChart, prepareCharts } = page;

  const shortTicks = { callback: (value) => Number(Number(value).toPrecision(4)) };
  const measures = ["test", "held-out"];

  const showDifferences = () => {
    const count = data.differences.length;
    byId("differences-section").querySelector(".card").hidden = count === 0;
    if (count === 0) return;
    byId("differences-box").style.setProperty("height", `${7 + 2.2 * count}rem`);
    const seen = new Set();
    const sets = data.differences.flatMap(({ label, measure, mean, error, values }, i) => {
      const shade = seriesColour(measures.indexOf(measure));
      const reach = 2 * (error || 0);
      const name = `${label} (${measure})`;
      const first = !seen.has(measure);
      seen.add(measure);
      return [
        { label: first ? measure : "", name, value: "x", data: [{ x: mean - reach, y: i }, { x: mean, y: i }, { x: mean + reach, y: i }],
          borderColor: shade, backgroundColor: shade, borderWidth: 3, pointStyle: "rect", pointRadius: [0, 6, 0] },
        { label: "", name, value: "x", data: values.map((x) => ({ x, y: i })), borderColor: shade, backgroundColor: "transparent", showLine: false, pointRadius: 4 },
      ];
    });
    const names = data.differences.map(({ label }) => label);
    drawChart("differences", sets, {
      x: { title: data.unit, ticks: shortTicks },
      y: { title: "", more: { min: -0.6, max: count - 0.4, reverse: true },
           ticks: { stepSize: 1, maxTicksLimit: count + 2, autoSkip: false, callback: (value) => names[value] || "" } },
      lines: [{ axis: "x", value: 0, label: "0", shade: colour("--ink") }],
    });
  };

  const showLooks = () => {
    const shown = data.runs.some(({ steps }) => steps.length > 1);
    byId("looks-section").hidden = !shown;
    if (!shown) return;
    for (const [id, axis] of [["by-steps", "steps"], ["by-time", "seconds"]]) {
      const seen = new Set();
      const sets = data.runs.map((one) => {
        const first = !seen.has(one.arm);
        seen.add(one.arm);
        const shade = seriesColour(one.arm);
        return { label: first ? data.arms[one.arm] : "", name: `${data.arms[one.arm]}, seed ${one.seed}`,
                 data: one[axis].map((x, i) => ({ x, y: one.bits[i] })), borderColor: shade, backgroundColor: shade, borderWidth: 1.5, pointRadius: 3 };
      });
      drawChart(id, sets, { x: { title: axis, ticks: { precision: 0 } }, y: { title: data.unit, ticks: shortTicks } });
    }
  };

  const showAll = () => {
    prepareCharts();
    showDifferences();
    showLooks();
  };

  run(() => {
    showAll();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => run(showAll));
  });
})();
