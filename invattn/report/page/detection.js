"use strict";
// Detection: what a network finds in an image, where it attends, what its inverse gives back, and how its training went.
(() => {
  const { byId, data, run, element, pretty, withCommas, segments, options, colour, seriesColour, charts, drawChart, prepareCharts,
          unpack, paint, paintPicture, heat, inflate, paintAttention, cellAt, askWith } = page;
  const layers = ["image", "truth", "map", "overlay"];
  const measures = [["S", "s"], ["F", "f"], ["E", "e"], ["MAE", "mae"]];
  const state = { network: 0, image: 0, layer: 3, level: 0, asked: null, place: 0, measure: "s" };

  const current = () => data.networks[state.network];
  const pictures = () => current().pictures;
  const originals = () => data.originals[pictures().originals];

  // ---- what it finds

  const imageOf = async (image) => {
    const { height, width, images } = originals();
    return { height, width, pixels: await unpack(images[image]) };
  };

  // The object in warm colours, the rest grey and dark.
  const paintLayer = async (canvas, network, image, layer) => {
    const { height, width, images, truths } = data.originals[network.pictures.originals];
    const [pixels, truth, map] = await Promise.all([unpack(images[image]), unpack(truths[image]), unpack(network.pictures.maps[image])]);
    if (layer === 0) return paintPicture(canvas, { height, width, pixels });
    if (layer < 3) return paint(canvas, height, width, (i) => Array(3).fill((layer === 1 ? truth : map)[i]));
    const plane = height * width;
    const warm = [255, 140, 20];
    return paint(canvas, height, width, (i) => {
      const share = map[i] / 255;
      const rgb = [pixels[i], pixels[plane + i], pixels[2 * plane + i]];
      const grey = 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2];
      return rgb.map((value, c) => (1 - share) * (0.5 * grey + 20) + share * (0.55 * value + 0.45 * warm[c]));
    });
  };

  const drawPicture = async () => {
    const { network, image, layer } = state;
    await paintLayer(byId("picture"), current(), image, layer);
    if (network !== state.network || image !== state.image || layer !== state.layer) return run(drawPicture);
    byId("picture-caption").textContent = `image ${image + 1}, ${layers[layer]}` +
      (layer < 2 ? "" : `; mean absolute error of the map ${pretty(pictures().errors[image])}`);
    byId("layers").querySelectorAll("button").forEach((button, i) => button.setAttribute("aria-pressed", String(i === layer)));
    return undefined;
  };

  const tile = (name, pressed, choose, draw) => {
    const canvas = element("canvas", {});
    const button = element("button", { type: "button", "aria-pressed": String(pressed) }, canvas, element("span", { text: name }));
    button.addEventListener("click", choose);
    run(() => draw(canvas));
    return button;
  };

  const showFound = () => {
    const there = pictures() !== null;
    byId("found-card").hidden = !there;
    byId("found-empty").hidden = there;
    byId("thumbs-field").hidden = !there;
    if (!there) return;
    const image = state.image = Math.min(state.image, pictures().maps.length - 1);
    byId("thumbs").replaceChildren(...originals().images.slice(0, pictures().maps.length).map((_, i) => {
      const canvas = element("canvas", {});
      const button = element("button", { type: "button", "aria-label": "Image " + (i + 1), "aria-pressed": String(i === image) }, canvas);
      button.addEventListener("click", () => choose({ image: i }));
      run(async () => paintPicture(canvas, await imageOf(i)));
      return button;
    }));
    const network = current();
    byId("layers").replaceChildren(...layers.map((name, layer) =>
      tile(name, layer === state.layer, () => { state.layer = layer; run(drawPicture); }, (canvas) => paintLayer(canvas, network, image, layer))));
    const others = data.networks.map((other, i) => [other, i]).filter(([other]) => other.pictures && other.pictures.originals === pictures().originals);
    byId("others-field").hidden = others.length < 2;
    byId("others").replaceChildren(...(others.length < 2 ? [] : others.map(([other, i]) =>
      tile(other.label, i === state.network, () => choose({ network: i }), (canvas) => paintLayer(canvas, other, Math.min(image, other.pictures.maps.length - 1), 2)))));
    run(drawPicture);
  };

  // ---- where a pixel attends

  const levelsOf = () => (pictures() ? pictures().levels : []);
  const canAsk = () => levelsOf().length > 0 && levelsOf()[0].stride > 0;

  const place = (mark, { top, left, high, wide }) => {
    for (const [rule, share] of [["left", left], ["top", top], ["width", wide], ["height", high]]) mark.style.setProperty(rule, 100 * share + "%");
  };

  // The point asked for; else, and where the run stores one answer only, the place on the object.
  const pointOf = ({ grid: [rows, columns], middles }) => state.asked ||
    { x: (middles[state.image] % columns + 0.5) / columns, y: (Math.floor(middles[state.image] / columns) + 0.5) / rows };

  const drawMaps = async () => {
    const { network, image, asked } = state;
    const levels = levelsOf();
    const picture = await imageOf(image);
    const figures = byId("maps").querySelectorAll("figure");
    for (let i = 0; i < levels.length; ++i) {
      const { grid: [rows, columns], stride, maps } = levels[i];
      const cell = cellAt(levels[i], pointOf(levels[i]));
      const bytes = await inflate(maps[image]);
      if (network !== state.network || image !== state.image || asked !== state.asked || figures[i] !== byId("maps").children[i]) return;
      const row = 1 + rows * columns;
      const query = stride === 0 ? 0 : cell.query;
      const even = paintAttention(figures[i].querySelector("canvas"), picture, [rows, columns], bytes.subarray(query * row, (query + 1) * row), data.response_levels);
      place(figures[i].querySelector(".mark"), cell);
      figures[i].querySelector("figcaption").textContent = `level ${i + 1}, ${rows} x ${columns}: ${even}`;
    }
  };

  const ask = (x, y) => {
    if (!canAsk()) return;
    state.asked = { x: Math.min(Math.max(x, 0), 0.999), y: Math.min(Math.max(y, 0), 0.999) };
    showAsked();
  };

  const showAsked = () => {
    const level = levelsOf()[0];
    const cell = cellAt(level, pointOf(level));
    place(byId("ask-mark"), cell);
    byId("ask-caption").textContent = (state.asked ? "asking: " : "a place on the object: ") + `row ${cell.row + 1}, column ${cell.column + 1} of ${level.grid.join(" x ")}`;
    run(drawMaps);
  };

  const showAttention = async () => {
    const levels = levelsOf();
    byId("attention-section").hidden = levels.length === 0;
    if (levels.length === 0) return;
    if (!canAsk()) state.asked = null;
    byId("attention-explain").textContent = canAsk()
      ? "Point at the image, tap it, or use the arrow keys: the maps show how strongly that place takes from every other, level by level."
      : "How strongly a place on the object takes from every other, level by level. This run stores no more than that.";
    byId("maps").replaceChildren(...levels.map((_, i) => element("figure", {},
      element("div", { class: "map-box" },
        element("canvas", { role: "img", "aria-label": "Where the chosen place attends, level " + (i + 1) }), element("span", { class: "mark" })),
      element("figcaption", { text: "level " + (i + 1) }))));
    paintPicture(byId("ask-canvas"), await imageOf(state.image));
    showAsked();
  };

  // ---- features undone

  const drawUndone = async () => {
    const { network, image, level } = state;
    const { size: [height, width], pictures: packed, largest } = levelsOf()[level].features;
    const bytes = await unpack(packed[image]);
    if (network !== state.network || image !== state.image || level !== state.level) return;
    const plane = height * width;
    ["before", "after", "undone"].forEach((id, i) => paintPicture(byId(id), { height, width, pixels: bytes.subarray(3 * i * plane, 3 * (i + 1) * plane) }));
    paint(byId("apart"), height, width, (i) => heat(bytes[9 * plane + i] / 255));
    byId("reading-largest").textContent = pretty(largest[image]);
    const inverse = current().inverses.find(({ level: number }) => number === level + 1);
    byId("reading-undone").textContent = inverse ? `${withCommas(inverse.images - inverse.failures)} of ${withCommas(inverse.images)}` : "–";
    byId("reading-iterations").textContent = inverse ? withCommas(inverse.iterations) : "–";
  };

  const showUndone = () => {
    const levels = levelsOf();
    const there = levels.some(({ features }) => features !== null);
    byId("undone-section").hidden = !there;
    if (!there) return;
    if (!levels[state.level] || levels[state.level].features === null) state.level = levels.findIndex(({ features }) => features !== null);
    segments(byId("level"), levels.map(({ features }, value) => ({ name: String(value + 1), value, possible: features !== null })), state.level, (level) => {
      state.level = level;
      run(drawUndone);
    });
    run(drawUndone);
  };

  // ---- training

  const shadeOf = ({ shade }) => seriesColour(shade);
  const dashOf = ({ dashed }) => (dashed && data.networks.length > 1 ? [6, 4] : []);
  // One line per run; the chosen network is thicker.
  const lines = (points, more = {}) => data.networks.flatMap((network, n) => network.runs.map((one, i) => ({
    label: i === 0 ? network.label : "", name: network.runs.length > 1 ? `${network.label}, ${one.name}` : network.label, data: points(one),
    borderColor: shadeOf(network), backgroundColor: shadeOf(network), borderDash: dashOf(network),
    borderWidth: n === state.network && data.networks.length > 1 ? 3 : 1.75, ...more,
  })));
  const along = (curve, key) => curve.epochs.map((x, i) => ({ x, y: curve[key][i] })).filter(({ x, y }) => x !== null && y !== null);

  // The epochs that the slider stops at: those of the longest training.
  const stops = () => data.networks.flatMap(({ runs }) => runs.map(({ training, looks }) => [...new Set([...training.epochs, ...looks.epochs])].filter((epoch) => epoch !== null).sort((a, b) => a - b)))
    .reduce((longest, list) => (list.length > 0 && (longest.length === 0 || list[list.length - 1] > longest[longest.length - 1]) ? list : longest), []);
  const until = (curve, key, epoch) => along(curve, key).filter(({ x }) => x <= epoch + 1e-9).map(({ y }) => y).pop();

  const here = () => {
    const epochs = stops();
    return epochs.length === 0 ? 0 : epochs[Math.min(state.place, epochs.length - 1)];
  };
  const rulerHere = () => ({ axis: "x", value: here(), label: "", dashed: true, shade: colour("--soft") });

  const showMoment = () => {
    const epoch = here();
    const { training, looks } = current().runs[0];
    const words = `After ${pretty(epoch)} ${epoch === 1 ? "epoch" : "epochs"}, ${current().label}.`;
    byId("when-caption").textContent = words;
    byId("when").setAttribute("aria-valuetext", words);
    const values = [["loss", until(training, "loss", epoch)]];
    if (training.largest.some((value) => value > 0)) values.push(["largest local constant", until(training, "largest", epoch)]);
    if (looks.epochs.length > 0) for (const [name, key] of measures) values.push([`held-out ${name}`, until(looks, key, epoch)]);
    byId("moment").replaceChildren(...values.map(([name, value]) =>
      element("div", {}, element("dt", { text: name }), element("dd", { text: value === undefined ? "–" : pretty(value) }))));
    for (const id of ["loss", "held-out", "largest"]) {
      const chart = charts.get(id);
      if (!chart) continue;
      chart.options.plugins.ruler.lines = [...chart.fixed, rulerHere()];
      chart.update("none");
    }
  };

  const drawTraining = (id, sets, title, { more, lines: fixed = [] } = {}) => {
    drawChart(id, sets, { x: { title: "epochs", more: { min: 0, max: stops().pop() } }, y: { title, more }, lines: fixed, legend: data.networks.length > 1 });
    charts.get(id).fixed = fixed;
  };

  const showHeldOut = () => {
    const name = measures.find(([, key]) => key === state.measure)[0];
    const sets = lines(({ looks }) => along(looks, state.measure), { pointRadius: 3 });
    const values = sets.flatMap((set) => set.data.map(({ y }) => y));
    const more = { suggestedMin: Math.min(...values) - 0.02, suggestedMax: Math.max(...values) + 0.02 };  // one look alone has no range
    drawTraining("held-out", sets, name === "MAE" ? "mean absolute error" : name + " of held-out images", { more });
  };

  const showTraining = () => {
    byId("training-section").hidden = stops().length === 0;
    if (byId("training-section").hidden) return;
    drawTraining("loss", lines(({ training }) => along(training, "loss")), "loss");
    const heldOut = data.networks.some(({ runs }) => runs.some(({ looks }) => looks.epochs.length > 0));
    byId("held-out-card").hidden = !heldOut;
    if (heldOut) {
      segments(byId("measure"), measures.map(([name, value]) => ({ name, value, possible: true })), state.measure, (measure) => {
        state.measure = measure;
        showHeldOut();
        showMoment();
      });
      showHeldOut();
    }
    const largest = lines(({ training }) => along(training, "largest").filter(({ y }) => y > 0));
    const guarded = largest.some((set) => set.data.length > 0);
    byId("largest-card").hidden = !guarded;
    if (guarded) {
      drawTraining("largest", largest.filter((set) => set.data.length > 0), "largest local constant",
        { more: { suggestedMin: 0, suggestedMax: 1.05 }, lines: [{ axis: "y", value: 1, label: "1", shade: colour("--ink") }] });
    }
    showMoment();
  };

  const showThresholds = () => {
    for (const [id, key, title] of [["f-curve", "f", "F-measure"], ["e-curve", "e", "E-measure"]]) {
      drawChart(id, data.networks.map((network) => ({
        label: network.label, borderColor: shadeOf(network), backgroundColor: shadeOf(network), borderDash: dashOf(network),
        data: network[key].map((y, i) => ({ x: data.thresholds[i], y })),
      })), { x: { title: "threshold", more: { min: 0, max: 255 } }, y: { title, more: { suggestedMin: 0, suggestedMax: 1 } }, legend: data.networks.length > 1 });
    }
  };

  const showCharts = () => {
    prepareCharts();
    showTraining();
    showThresholds();
  };

  // ---- all together

  const choose = (wanted) => {
    const focused = document.activeElement && document.activeElement.closest("#thumbs, #others");
    const index = focused ? [...focused.children].indexOf(document.activeElement) : -1;
    const other = wanted.network !== undefined && wanted.network !== state.network;
    Object.assign(state, wanted, { asked: null });
    show();
    if (other) run(showCharts);
    if (index >= 0) focused.children[index]?.focus();  // the buttons were made anew
  };

  const show = () => {
    options(byId("network"), data.networks.map(({ label }) => label), state.network, (network) => choose({ network }));
    byId("network-field").hidden = data.networks.length < 2;
    byId("chooser").hidden = data.networks.length < 2 && !pictures();
    showFound();
    const image = pictures() ? `, image ${state.image + 1}` : "";
    document.querySelectorAll("#found-section .chosen, #attention-section .chosen, #undone-section .chosen").forEach((span) => { span.textContent = current().label + image; });
    run(showAttention);
    showUndone();
  };

  const start = () => {
    state.network = Math.max(0, data.networks.findIndex((network) => network.pictures && network.pictures.levels.length > 0));
    byId("chooser").addEventListener("submit", (event) => event.preventDefault());
    const turn = (by) => { state.layer = (state.layer + by + layers.length) % layers.length; run(drawPicture); };
    const box = byId("picture-box");
    box.addEventListener("click", () => turn(1));
    box.addEventListener("keydown", (event) => {
      const images = pictures().maps.length;
      const acts = {
        ArrowDown: () => turn(1), ArrowUp: () => turn(-1), Enter: () => turn(1), " ": () => turn(1),
        ArrowRight: () => choose({ image: (state.image + 1) % images }), ArrowLeft: () => choose({ image: (state.image + images - 1) % images }),
      };
      if (!acts[event.key]) return;
      event.preventDefault();
      acts[event.key]();
    });
    askWith(byId("ask"), byId("ask-canvas"), ask, () => (canAsk() ? { level: levelsOf()[0], point: pointOf(levelsOf()[0]) } : null));
    const slider = byId("when");
    slider.max = String(Math.max(stops().length - 1, 0));
    state.place = Number(slider.max);
    slider.value = slider.max;
    slider.hidden = stops().length < 2;
    slider.addEventListener("input", () => { state.place = Number(slider.value); run(showMoment); });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => run(showCharts));
    show();
    run(showCharts);
  };

  run(start);
})();
