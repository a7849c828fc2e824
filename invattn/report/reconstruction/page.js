"use strict";
// Reconstruction: draws what the reader chooses.
(() => {
  const { byId, data, run, element, pretty, withCommas, segments, options, inflate, unpack, paint, paintPicture, heat, paintAttention, cellAt, askWith,
          showThumbs, showMaps, placeMark, inside, drawCharts, keepDrawn } = page;
  const state = { view: 0, variant: 0, kind: 0, solver: null, image: 0, place: 0, asked: null };

  const networkAt = (view, variant, kind) =>
    data.networks.find((network) => network.view === view && network.variant === variant && network.kind === kind);
  const current = () => networkAt(state.view, state.variant, state.kind);
  const kindsHere = () => data.networks.filter((network) => network.view === state.view && network.variant === state.variant);

  // ---- pictures

  const originalOf = async (pictures, image) => {
    const { height, width, images } = data.originals[pictures.originals];
    return { height, width, pixels: await unpack(images[image]) };
  };

  // Where an iterate lies among the packed ones.
  const frameOffset = (pictures, solver, place, size) => {
    if (place === 0 && pictures.solvers[solver].shared) return 0;
    let count = 0;
    for (let s = 0; s < solver; ++s) count += pictures.solvers[s].iterations.length - (pictures.solvers[s].shared ? 1 : 0);
    return (count + place - (pictures.solvers[solver].shared ? 1 : 0)) * size;
  };

  const iterateOf = async (pictures, image, solver, place) => {
    const original = await originalOf(pictures, image);
    const codes = await inflate(pictures.images[image]);
    const size = original.pixels.length;
    const from = frameOffset(pictures, solver, place, size);
    const pixels = new Uint8ClampedArray(size);
    for (let i = 0; i < size; ++i) pixels[i] = original.pixels[i] + data.differences[codes[from + i]];
    return { ...original, pixels };
  };

  const errorOf = async (pictures, image) => {
    const { height, width } = data.originals[pictures.originals];
    const codes = await inflate(pictures.images[image]);
    return { height, width, values: Array.from(codes.subarray(codes.length - height * width), (code) => code / (data.error_levels - 1)) };
  };

  // ---- choosing

  // The nearest network there is, when data set or variant change.
  const settle = (wanted) => {
    if (networkAt(wanted.view, wanted.variant, wanted.kind)) return wanted;
    const sorted = [...data.networks].sort((a, b) => {
      const distance = (n) => (n.view !== wanted.view ? 4 : 0) + (n.variant !== wanted.variant ? 2 : 0) + (n.kind !== wanted.kind ? 1 : 0);
      return distance(a) - distance(b);
    });
    return { view: sorted[0].view, variant: sorted[0].variant, kind: sorted[0].kind };
  };

  const choose = (wanted) => {
    stopPlaying();
    const { view, variant, kind } = settle({ view: state.view, variant: state.variant, kind: state.kind, ...wanted });
    Object.assign(state, { view, variant, kind });
    show();
  };

  const showChooser = () => {
    options(byId("view"), data.views, state.view, (view) => choose({ view }));
    options(byId("variant"), data.variants, state.variant, (variant) => choose({ variant }));
    byId("view-field").hidden = data.views.length < 2;
    byId("variant-field").hidden = data.variants.length < 2;
    segments(byId("kind"), data.kinds.map((name, value) => ({ name, value, possible: Boolean(networkAt(state.view, state.variant, value)) })),
      state.kind, (kind) => choose({ kind }));
    byId("chooser").hidden = data.networks.length < 2;
    const wide = data.views[state.view] + ", " + data.variants[state.variant];
    const text = wide + ", " + data.kinds[state.kind];
    document.querySelectorAll(".chosen").forEach((span) => {
      span.textContent = (span.classList.contains("wide") ? wide : text) + ", seed " + current().seed;
    });
    document.querySelectorAll(".score").forEach((button) => {
      button.setAttribute("aria-pressed", String(data.networks[Number(button.dataset.network)] === current()));
    });
  };

  // ---- the image that comes back

  let player = null;
  const playing = () => player !== null;
  const stopPlaying = () => {
    if (playing()) clearInterval(player);
    player = null;
    byId("play").setAttribute("aria-label", "Play");
    byId("play-shape").setAttribute("d", "M7 4l13 8-13 8z");
  };
  const startPlaying = () => {
    if (state.place >= Number(byId("step").max)) moveTo(0);
    byId("play").setAttribute("aria-label", "Pause");
    byId("play-shape").setAttribute("d", "M6 4h4v16H6zM14 4h4v16h-4z");
    player = setInterval(() => {
      if (state.place >= Number(byId("step").max)) stopPlaying();
      else moveTo(state.place + 1);
    }, 380);
  };
  const moveTo = (place) => {
    state.place = place;
    byId("step").value = String(place);
    run(drawIterate);
  };

  const solverIndex = (pictures) => {
    const wanted = pictures.solvers.findIndex(({ solver }) => solver === state.solver);
    if (wanted >= 0) return wanted;
    return Math.max(0, pictures.solvers.findIndex(({ solver }) => solver === current().solver));
  };

  const drawIterate = async () => {
    const network = current();
    const pictures = network.pictures;
    const solver = solverIndex(pictures);
    const { iterations, residuals, errors } = pictures.solvers[solver];
    const { image, place } = state;
    const [iterate, original] = [await iterateOf(pictures, image, solver, place), await originalOf(pictures, image)];
    if (network !== current() || image !== state.image || place !== state.place || solver !== solverIndex(pictures)) return;
    paintPicture(byId("iterate"), iterate);
    paintPicture(byId("original"), original);
    const { height, width, pixels } = original;
    const apart = (i) => Math.max(...[0, 1, 2].map((channel) => Math.abs(iterate.pixels[i + channel * height * width] - pixels[i + channel * height * width])));
    paint(byId("difference"), height, width, (i) => heat(4 * apart(i) / 255));
    const steps = iterations[place];
    const words = steps === 0 ? "z, the start" : "after " + steps + (steps === 1 ? " step" : " steps");
    byId("iterate-caption").textContent = words;
    byId("iterate").setAttribute("aria-label", "Iterate: " + words);
    byId("step").setAttribute("aria-valuetext", words);
    byId("reading-step").textContent = steps + " of " + iterations[iterations.length - 1];
    byId("reading-residual").textContent = pretty(residuals[image][place]);
    byId("reading-error").textContent = pretty(errors[image][place]);
  };

  const showEmerge = async () => {
    const pictures = current().pictures;
    const usable = Boolean(pictures) && pictures.solvers.length > 0;
    byId("emerge-card").hidden = !usable;
    byId("emerge-empty").hidden = usable;
    if (!usable) return;
    state.image = Math.min(state.image, pictures.images.length - 1);
    const solver = solverIndex(pictures);
    segments(byId("solver"), pictures.solvers.map(({ solver: name }) => ({ name, value: name, possible: true })), pictures.solvers[solver].solver, (name) => {
      stopPlaying();
      state.solver = name;
      run(showEmerge);
    });
    const slider = byId("step");
    const last = pictures.solvers[solver].iterations.length - 1;
    state.place = Math.min(state.place, last);
    slider.max = String(last);
    slider.value = String(state.place);
    showThumbs(pictures.images.length, state.image, async (canvas, image) => paintPicture(canvas, await originalOf(pictures, image)), (image) => {
      stopPlaying();
      state.image = image;
      byId("thumbs").querySelectorAll("button").forEach((other, i) => other.setAttribute("aria-pressed", String(i === image)));
      run(drawIterate);
      run(showAttention);
    });
    await drawIterate();
  };

  // ---- charts

  const showCharts = () => {
    for (const id of ["convergence", "constants"]) byId(id + "-section").hidden = current().charts === null;
    drawCharts(["convergence", "constants"], current().charts ?? []);
    const training = data.training.find(({ view, variant }) => view === state.view && variant === state.variant)?.charts ?? [];
    byId("training-section").hidden = training.length === 0;
    drawCharts(["loss", "largest"], training, { strong: state.kind });
  };

  // ---- where a pixel attends

  const withResponse = () => kindsHere().filter((network) => network.pictures && network.pictures.response.length > state.image);

  const drawMaps = async () => {
    const networks = withResponse();
    const { image, asked } = state;
    if (networks.length === 0 || asked === null) return;
    const figures = byId("maps").querySelectorAll("figure");
    for (let n = 0; n < networks.length; ++n) {
      const { grid: [rows, columns], stride } = networks[n].pictures;
      const bytes = await inflate(networks[n].pictures.response[image]);
      const original = await originalOf(networks[n].pictures, image);
      if (asked !== state.asked || image !== state.image || figures[n] !== byId("maps").children[n]) return;
      const rowLength = 1 + rows * columns;
      const { query } = cellAt({ grid: [rows, columns], stride }, asked);
      const words = paintAttention(figures[n].querySelector("canvas"), original, [rows, columns], bytes.subarray(query * rowLength, (query + 1) * rowLength), data.response_levels);
      figures[n].querySelector("figcaption").textContent = data.kinds[networks[n].kind] + ": " + words;
    }
  };

  const ask = (x, y) => {
    state.asked = inside(x, y);
    const networks = withResponse();
    if (networks.length === 0) return;
    const cell = cellAt(networks[0].pictures, state.asked);
    for (const mark of document.querySelectorAll("#attention-section .mark")) placeMark(mark, cell);
    byId("ask-caption").textContent = "asking: row " + (cell.row + 1) + ", column " + (cell.column + 1) + " of the " + networks[0].pictures.grid.join(" x ") + " positions";
    run(drawMaps);
  };

  const showAttention = async () => {
    const networks = withResponse();
    byId("attention-section").querySelector(".card").hidden = networks.length === 0;
    byId("attention-empty").hidden = networks.length > 0;
    if (networks.length === 0) return;
    showMaps(networks.map(({ kind }) => data.kinds[kind]), "Where the chosen pixel attends");
    paintPicture(byId("ask-canvas"), await originalOf(networks[0].pictures, state.image));
    const { x, y } = state.asked || { x: 0.5, y: 0.5 };
    ask(x, y);
  };

  // ---- error maps

  const showErrors = () => {
    const networks = kindsHere().filter((network) => network.pictures);
    byId("errors").parentElement.hidden = networks.length === 0;
    byId("errors-empty").hidden = networks.length > 0;
    byId("errors").replaceChildren(...networks.map((network) => {
      const { images, factors } = network.pictures;
      const figures = images.map((_, image) => {
        const canvas = element("canvas", { role: "img", "aria-label": data.kinds[network.kind] + ", error of image " + (image + 1) });
        run(async () => {
          const { height, width, values } = await errorOf(network.pictures, image);
          paint(canvas, height, width, (i) => heat(values[i]));
        });
        return element("figure", {}, canvas, element("figcaption", { text: factors[image] === 1 ? "as it is" : "× " + (factors[image] < 1e9 ? withCommas(factors[image]) : pretty(factors[image])) }));
      });
      return element("div", { class: "error-row", style: { "--columns": String(Math.max(images.length, 3)) } },
        element("span", { text: data.kinds[network.kind] }), element("div", {}, ...figures));
    }));
  };

  // ---- all together

  const show = () => {
    showChooser();
    run(showEmerge);
    run(showCharts);
    run(showAttention);
    run(showErrors);
  };

  const start = () => {
    byId("step").addEventListener("input", () => { stopPlaying(); moveTo(Number(byId("step").value)); });
    byId("play").addEventListener("click", () => (playing() ? stopPlaying() : startPlaying()));
    byId("chooser").addEventListener("submit", (event) => event.preventDefault());
    document.querySelectorAll(".score").forEach((button) => button.addEventListener("click", () => {
      const { view, variant, kind } = data.networks[Number(button.dataset.network)];
      choose({ view, variant, kind });
    }));
    askWith(byId("ask"), byId("ask-canvas"), ask, () => (state.asked === null ? null : { level: withResponse()[0].pictures, point: state.asked }));
    if (data.networks.length === 0) {
      document.querySelectorAll("#emerge, .pair > section, #training-section, #attention-section, #errors-section, #chooser").forEach((part) => { part.hidden = true; });
      return;
    }
    // The first thing to see: a network with pictures.
    const first = data.networks.find((network) => network.pictures) || data.networks[0];
    Object.assign(state, { view: first.view, variant: first.variant, kind: first.kind });
    show();
    keepDrawn(showCharts);
  };

  run(start);
})();
