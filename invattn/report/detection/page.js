"use strict";
// Detection: what a network finds in an image, where it attends, what its inverse gives back, and how its training went.
(() => {
  const { byId, data, run, element, pretty, withCommas, segments, options, unpack, paint, paintPicture, heat, inflate, paintAttention, cellAt, askWith,
          showThumbs, showMaps, placeMark, inside, colour, charts, setRulers, drawCharts, keepDrawn } = page;
  const layers = ["image", "truth", "map", "overlay"];
  const state = { network: 0, image: 0, layer: 3, level: 0, asked: null, place: 0, measure: "held-out-s" };

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
    showThumbs(pictures().maps.length, image, async (canvas, i) => paintPicture(canvas, await imageOf(i)), (i) => choose({ image: i }));
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
      placeMark(figures[i].querySelector(".mark"), cell);
      figures[i].querySelector("figcaption").textContent = `level ${i + 1}, ${rows} x ${columns}: ${even}`;
    }
  };

  const ask = (x, y) => {
    if (!canAsk()) return;
    state.asked = inside(x, y);
    showAsked();
  };

  const showAsked = () => {
    const level = levelsOf()[0];
    const cell = cellAt(level, pointOf(level));
    placeMark(byId("ask-mark"), cell);
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
    showMaps(levels.map((_, i) => "level " + (i + 1)), "Where the chosen place attends");
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

  // The epochs that the slider stops at: those of the longest training.
  const stops = (() => {
    const epochs = new Map();
    for (const { series } of data.training) {
      for (const { name, x } of series) epochs.set(name, [...(epochs.get(name) || []), ...x.filter((epoch) => epoch !== null)]);
    }
    const lists = [...epochs.values()].map((list) => [...new Set(list)].sort((a, b) => a - b));
    return lists.reduce((longest, list) => (list.length > 0 && !(list[list.length - 1] <= longest[longest.length - 1]) ? list : longest), []);
  })();
  const here = () => (stops.length === 0 ? 0 : stops[Math.min(state.place, stops.length - 1)]);

  const showMoment = () => {
    const epoch = here();
    const words = `After ${pretty(epoch)} ${epoch === 1 ? "epoch" : "epochs"}, ${current().label}.`;
    byId("when-caption").textContent = words;
    byId("when").setAttribute("aria-valuetext", words);
    const values = data.training.flatMap(({ y: { title }, series }) => {
      const one = series.find(({ of }) => of === state.network);
      return one ? [[title, one.y.filter((y, i) => y !== null && one.x[i] !== null && one.x[i] <= epoch + 1e-9).pop()]] : [];
    });
    byId("moment").replaceChildren(...values.map(([name, value]) =>
      element("div", {}, element("dt", { text: name }), element("dd", { text: value === undefined ? "–" : pretty(value) }))));
    const line = { axis: "x", value: epoch, label: "", dashed: true, shade: colour("--soft") };
    for (const chart of shown()) if (charts.has(chart.name)) setRulers(chart.name, chart, [line]);
  };

  // Of the measures of held-out images the chosen one.
  const isMeasure = ({ name }) => name.startsWith("held-out-");
  const shown = () => data.training.filter((chart) => !isMeasure(chart) || chart.name === state.measure)
    .map((chart) => (isMeasure(chart) ? { ...chart, name: "held-out" } : chart));

  const showTraining = () => {
    byId("training-section").hidden = stops.length === 0;
    drawCharts(["loss", "held-out", "largest"], shown(), { strong: data.networks.length > 1 ? state.network : -1 });
    segments(byId("measure"), data.training.filter(isMeasure).map(({ name }) => ({ name: name.slice("held-out-".length).toUpperCase(), value: name, possible: true })),
      state.measure, (measure) => { state.measure = measure; showTraining(); });
    showMoment();
  };

  const showCharts = () => {
    drawCharts(["f-curve", "e-curve"], data.thresholds);
    showTraining();
  };

  // ---- all together

  const choose = (wanted) => {
    const focused = document.activeElement && document.activeElement.closest("#thumbs, #others");
    const index = focused ? [...focused.children].indexOf(document.activeElement) : -1;
    const other = wanted.network !== undefined && wanted.network !== state.network;
    Object.assign(state, wanted, { asked: null });
    show();
    if (other) run(showTraining);
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
    slider.max = String(Math.max(stops.length - 1, 0));
    state.place = Number(slider.max);
    slider.value = slider.max;
    slider.hidden = stops.length < 2;
    slider.addEventListener("input", () => { state.place = Number(slider.value); run(showMoment); });
    show();
    keepDrawn(showCharts);
  };

  run(start);
})();
