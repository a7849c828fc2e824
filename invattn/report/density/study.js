"use strict";
// A study: differences between arms with their errors, and the held-out curves of all trainings.
(() => {
  const { byId, data, run, drawCharts, keepDrawn } = page;
  run(() => {
    const names = data.charts.find(({ name }) => name === "differences")?.y.names ?? [];
    byId("differences-box").style.setProperty("height", `${7 + 2.2 * names.length}rem`);
    byId("looks-section").hidden = !data.charts.some(({ name }) => name === "by-steps");
    keepDrawn(() => drawCharts(["differences", "by-steps", "by-time"], data.charts));
  });
})();
