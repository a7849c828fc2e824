"use strict";
// What the scripts of all reports share: the data that the page carries, texts, choices, pictures and charts. Nothing outside the page is asked for.
const page = (() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);

  // ---- small helpers

  const trouble = (error) => {
    byId("trouble").hidden = false;
    byId("trouble").textContent = "Something on this page could not be drawn: " + error.message;
    console.error(error);
  };
  const run = (work) => { Promise.resolve().then(work).catch(trouble); };

  const element = (name, attributes, ...children) => {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes || {})) {
      if (key === "text") made.textContent = value;
      else if (key === "style") for (const [rule, text] of Object.entries(value)) made.style.setProperty(rule, text);
      else made.setAttribute(key, value);
    }
    made.append(...children);
    return made;
  };

  const superscript = (number) => String(number).replace(/[-0-9]/g, (letter) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(letter)]);
  const pretty = (value) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "not finite";
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 100 && size < 1e5) return withCommas(Math.round(value));
    if (size >= 1e-3 && size < 100) return value.toPrecision(3).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
    const power = Math.floor(Math.log10(size));
    return (value / 10 ** power).toFixed(1) + " × 10" + superscript(power);
  };
  const withCommas = (number) => number.toLocaleString("en-GB");

  const segments = (field, names, chosen, choose) => {
    field.querySelectorAll("label").forEach((label) => label.remove());
    names.forEach(({ name, value, possible }) => {
      const input = element("input", { type: "radio", name: field.id, value: String(value) });
      input.checked = value === chosen;
      input.disabled = !possible;
      input.addEventListener("change", () => choose(value));
      field.append(element("label", {}, input, element("span", { text: name })));
    });
    field.hidden = names.length < 2;
  };

  const options = (select, names, chosen, choose) => {
    select.replaceChildren(...names.map((name, i) => element("option", { value: String(i), text: name })));
    select.value = String(chosen);
    select.onchange = () => choose(Number(select.value));
  };

  // ---- pictures

  const inflated = new Map();
  // Bytes of base64 of zlib; each text is unpacked once.
  const inflate = (text) => {
    if (!inflated.has(text)) {
      inflated.set(text, (async () => {
        if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to unpack the pictures (it lacks DecompressionStream).");
        const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
        const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
        return new Uint8Array(await new Response(stream).arrayBuffer());
      })());
    }
    return inflated.get(text);
  };

  // Pixels that are stored each as the difference from the one before.
  const unpack = async (text) => {
    const steps = await inflate(text);
    const pixels = new Uint8ClampedArray(steps.length);
    let sum = 0;
    for (let i = 0; i < steps.length; ++i) pixels[i] = sum = (sum + steps[i]) & 255;
    return pixels;
  };

  const paint = (canvas, height, width, colourAt) => {
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext("2d");
    const picture = context.createImageData(width, height);
    for (let i = 0; i < height * width; ++i) {
      const [red, green, blue] = colourAt(i);
      picture.data.set([red, green, blue, 255], 4 * i);
    }
    context.putImageData(picture, 0, 0);
  };
  const paintPicture = (canvas, { height, width, pixels }) => {
    const plane = height * width;
    paint(canvas, height, width, (i) => [pixels[i], pixels[plane + i], pixels[2 * plane + i]]);
  };

  // Black, purple, orange, yellow: the order survives in grey.
  const stops = [[0, 0, 5], [87, 15, 110], [186, 54, 84], [250, 140, 10], [252, 255, 163]];
  const heat = (value) => {
    const place = Math.min(Math.max(value, 0), 1) * (stops.length - 1);
    const below = Math.min(Math.floor(place), stops.length - 2);
    return stops[below].map((low, i) => low + (stops[below + 1][i] - low) * (place - below));
  };

  // ---- where a place attends

  // In which cell of the grid of answers a point lies, as shares of the image, and which answer is its own. Stride 0: there is one answer.
  const cellAt = ({ grid: [rows, columns], stride: apart }, { x, y }) => {
    const stride = Math.max(apart, 1);
    const [down, right] = [Math.floor(Math.min(y * rows, rows - 1) / stride), Math.floor(Math.min(x * columns, columns - 1) / stride)];
    const [row, column] = [down * stride, right * stride];
    return { row, column, query: apart === 0 ? 0 : down * Math.ceil(columns / stride) + right, top: row / rows, left: column / columns,
             high: Math.min(stride, rows - row) / rows, wide: Math.min(stride, columns - column) / columns };
  };

  // An answer, its least in 255ths of its largest and then its levels, over the dimmed image. Says how uneven it is.
  const paintAttention = (canvas, { height, width, pixels }, [rows, columns], [least, ...map], levels) => {
    paint(canvas, height, width, (i) => {
      const row = Math.min(rows - 1, Math.floor(Math.floor(i / width) * rows / height));
      const column = Math.min(columns - 1, Math.floor((i % width) * columns / width));
      const weight = map[row * columns + column] / (levels - 1);
      const grey = 0.4 * (0.3 * pixels[i] + 0.59 * pixels[height * width + i] + 0.11 * pixels[2 * height * width + i]);
      const warm = heat(0.35 + 0.65 * weight);
      return warm.map((value) => grey + (value - grey) * Math.sqrt(weight));
    });
    return map.every((level) => level === map[0]) ? "even" : "least " + Math.round(100 * least / 255) + " % of most";
  };

  // Pointing, tapping and the arrow keys; `where` gives the grid and the point asked for so far, or null.
  const askWith = (box, canvas, ask, where) => {
    const point = (event) => {
      const area = canvas.getBoundingClientRect();
      ask((event.clientX - area.left) / area.width, (event.clientY - area.top) / area.height);
    };
    box.addEventListener("pointermove", point);
    box.addEventListener("pointerdown", point);
    box.addEventListener("keydown", (event) => {
      const [right, down] = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] || [];
      const from = where();
      if (right === undefined || from === null) return;
      event.preventDefault();
      const { grid: [rows, columns], stride } = from.level;
      ask(from.point.x + right * stride / columns, from.point.y + down * stride / rows);
    });
  };

  // A button per image; `draw` paints its canvas.
  const showThumbs = (count, chosen, draw, choose) => byId("thumbs").replaceChildren(...Array.from({ length: count }, (_, image) => {
    const canvas = element("canvas", {});
    const button = element("button", { type: "button", "aria-label": "Image " + (image + 1), "aria-pressed": String(image === chosen) }, canvas);
    button.addEventListener("click", () => choose(image));
    run(() => draw(canvas, image));
    return button;
  }));

  // A map below its name, with a mark, for each of the names.
  const showMaps = (names, what) => byId("maps").replaceChildren(...names.map((name) => element("figure", {},
    element("div", { class: "map-box" }, element("canvas", { role: "img", "aria-label": `${what}, ${name}` }), element("span", { class: "mark" })),
    element("figcaption", { text: name }))));

  const placeMark = (mark, { top, left, high, wide }) => {
    for (const [rule, share] of [["left", left], ["top", top], ["width", wide], ["height", high]]) mark.style.setProperty(rule, 100 * share + "%");
  };
  const inside = (x, y) => ({ x: Math.min(Math.max(x, 0), 0.999), y: Math.min(Math.max(y, 0), 0.999) });

  // ---- charts

  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const seriesColour = (i) => colour("--s" + (i % 5));
  const charts = new Map();

  // A vertical or horizontal line with a word beside it.
  const ruler = {
    id: "ruler",
    afterDatasetsDraw(chart, _, settings) {
      const { ctx, chartArea: area, scales } = chart;
      for (const { axis, value, label, dashed, shade } of settings.lines || []) {
        const place = scales[axis].getPixelForValue(value);
        const upright = axis === "x";
        if (upright ? place < area.left - 1 || place > area.right + 1 : place < area.top - 1 || place > area.bottom + 1) continue;
        ctx.save();
        ctx.strokeStyle = ctx.fillStyle = shade;
        ctx.lineWidth = 1.5;
        if (dashed) ctx.setLineDash([5, 4]);
        ctx.beginPath();
        if (upright) { ctx.moveTo(place, area.top); ctx.lineTo(place, area.bottom); } else { ctx.moveTo(area.left, place); ctx.lineTo(area.right, place); }
        ctx.stroke();
        ctx.font = "12px " + Chart.defaults.font.family;
        const left = upright ? place > (area.left + area.right) / 2 : false;
        ctx.textAlign = upright ? (left ? "right" : "left") : "right";
        ctx.fillText(label, upright ? place + (left ? -5 : 5) : area.right - 4, upright ? area.top + (dashed ? 26 : 12) : place - 5);
        ctx.restore();
      }
    },
  };

  const powerTicks = { callback: (value) => { const power = Math.log10(value); return Number.isInteger(Math.round(power * 1e6) / 1e6) ? "10" + superscript(Math.round(power)) : ""; } };
  const shortTicks = { callback: (value) => Number(Number(value).toPrecision(4)) };
  const nameTicks = (names) => ({ stepSize: 1, maxTicksLimit: names.length + 2, autoSkip: false, callback: (value) => names[value] || "" });

  const setRulers = (id, { rulers }, more = []) => {
    const lines = rulers.map((one) => ({ ...one, shade: colour(one.dashed ? "--soft" : "--ink") }));
    charts.get(id).options.plugins.ruler.lines = [...lines, ...more];
    charts.get(id).update("none");
  };

  // A chart as the run's figures have it. Series of what is `strong` are lifted out.
  const drawChart = (id, chart, { strong = -1 } = {}) => {
    charts.get(id)?.destroy();
    const shadeOf = (number) => (number >= 0 ? seriesColour(number) : colour(number === -1 ? "--ink" : "--soft"));
    const axis = ({ title, log, low, high, names }) => ({
      grid: { color: colour("--rule"), borderColor: colour("--soft"), tickColor: "transparent" },
      ticks: { color: colour("--soft"), maxTicksLimit: 7, maxRotation: 0, ...(names ? nameTicks(names) : log ? powerTicks : shortTicks) },
      title: { display: title !== "", text: title, color: colour("--soft") },
      type: log ? "logarithmic" : "linear", min: low, max: high, reverse: Boolean(names),
    });
    const there = (value, { log }) => value !== null && !(log && value <= 0);
    const datasets = chart.series.map((one) => ({
      label: one.legend, name: one.name,
      data: one.x.map((x, i) => ({ x, y: one.y[i] })).filter(({ x, y }) => there(x, chart.x) && there(y, chart.y)),
      borderColor: shadeOf(one.colour), backgroundColor: shadeOf(one.colour) + (one.filled ? "55" : ""), fill: one.filled ? "origin" : false,
      borderDash: one.dashed ? [5, 4] : [], borderWidth: one.of >= 0 && one.of === strong ? 3 : one.width, showLine: one.width > 0,
      pointRadius: 0.65 * one.dots, pointHitRadius: 8, tension: 0,
    }));
    const tip = ({ dataset, parsed }) => " " + (chart.y.names ? chart.y.names[parsed.y] : dataset.name) + ": " + pretty(chart.y.names ? parsed.x : parsed.y);
    charts.set(id, new Chart(byId(id), {
      type: "line",
      data: { datasets },
      options: {
        responsive: true,
        maintainAspectRatio: false,
        animation: false,
        parsing: false,
        interaction: { mode: "nearest", axis: "x", intersect: false },
        scales: { x: axis(chart.x), y: axis(chart.y) },
        plugins: {
          legend: {
            display: chart.facts.length === 0 && datasets.filter(({ label }) => label !== "").length > 1, position: "bottom", align: "start",
            labels: { color: colour("--ink"), boxWidth: 22, boxHeight: 0, padding: 14, filter: (item) => item.text !== "" },
          },
          ruler: { lines: [] },
          tooltip: { callbacks: { label: tip } },
        },
      },
      plugins: [ruler],
    }));
    setRulers(id, chart);
    byId(id + "-facts")?.replaceChildren(...chart.facts.map(({ colour: number, name, text }) => element("li", {},
      element("span", { class: "key", style: { background: shadeOf(number) } }), element("span", {}, element("b", { text: name }), " " + text))));
  };

  // Those of the charts that there are; the cards of the others are hidden.
  const drawCharts = (ids, list, settings) => {
    if (typeof Chart === "undefined") throw new Error("the chart library is missing.");
    Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
    Chart.defaults.font.size = 12;
    for (const id of ids) {
      const chart = list.find(({ name }) => name === id);
      byId(id).closest(".card").hidden = !chart;
      if (chart) drawChart(id, chart, settings);
    }
  };

  // Now, and again when the reader's colours change.
  const keepDrawn = (draw) => {
    run(draw);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => run(draw));
  };

  document.querySelectorAll(".copy").forEach((button) => button.addEventListener("click", () => run(async () => {
    const source = byId(button.dataset.copy);
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {  // not allowed from a file in some browsers: select it, so that the reader can
      getSelection().selectAllChildren(source);
      button.textContent = "Selected: press Ctrl+C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  })));

  return { byId, data, run, element, pretty, withCommas, segments, options, inflate, unpack, paint, paintPicture, heat, cellAt, paintAttention, askWith,
           showThumbs, showMaps, placeMark, inside, colour, charts, setRulers, drawCharts, keepDrawn };
})();
