import * as ort from "./ort/ort.wasm.min.mjs";

// A plain static server gives no cross-origin isolation, so there are no shared threads.
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = new URL("./ort/", import.meta.url).href;

const SHOWN = 18, TIMED = 50, BATCH = 50;
const $ = id => document.getElementById(id);
const facts = await (await fetch("samples.json")).json();
const pixels = new Float32Array(await (await fetch("samples.bin")).arrayBuffer());
const size = facts.shape.reduce((a, b) => a * b);
const name = label => facts.classes[label] ?? String(label);

async function open(model) {
  const bytes = new Uint8Array(await (await fetch(model.file)).arrayBuffer());
  const start = performance.now();
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"] });
  return { session, load: performance.now() - start };
}

async function classify(session, first, count) {
  const part = pixels.subarray(first * size, (first + count) * size);
  const input = new ort.Tensor("float32", part, [count, ...facts.shape]);
  const output = (await session.run({ [session.inputNames[0]]: input }))[session.outputNames[0]];
  const classes = output.dims[1];
  return Array.from({ length: count }, (_, i) => {
    const scores = output.data.subarray(i * classes, (i + 1) * classes);
    return scores.indexOf(Math.max(...scores));
  });
}

async function measure(model) {
  const { session, load } = await open(model);
  const guesses = [];
  for (let i = 0; i < facts.labels.length; i += BATCH)
    guesses.push(...await classify(session, i, Math.min(BATCH, facts.labels.length - i)));
  const times = [];
  for (let i = 0; i < TIMED; i++) {
    const start = performance.now();
    await classify(session, i % facts.labels.length, 1);
    times.push(performance.now() - start);
  }
  await session.release();
  const right = guesses.filter((guess, i) => guess === facts.labels[i]).length;
  return { guesses, load, ms: times.sort((a, b) => a - b)[TIMED >> 1], accuracy: 100 * right / guesses.length };
}

function draw(canvas, index) {
  const [channels, height, width] = facts.shape;
  const plane = height * width, context = canvas.getContext("2d");
  canvas.width = width; canvas.height = height;
  const image = context.createImageData(width, height);
  for (let p = 0; p < plane; p++) {
    for (let c = 0; c < 3; c++) {
      const from = channels === 3 ? c : 0;
      const value = pixels[index * size + from * plane + p] * facts.std[from] + facts.mean[from];
      image.data[4 * p + c] = 255 * value;
    }
    image.data[4 * p + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

function element(tag, text, className = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  made.className = className;
  return made;
}

function show(model, result) {
  const pairs = { width: model.width, bytes: model.bytes.toLocaleString("en"),
    "smaller than float": `${(facts.fp32_bytes / model.bytes).toFixed(1)}×`,
    [`accuracy on ${facts.labels.length} images`]: `${result.accuracy.toFixed(1)} %`,
    "milliseconds per image": result.ms.toFixed(2) };
  $("facts").replaceChildren(...Object.entries(pairs).map(([key, value]) => {
    const box = document.createElement("div");
    box.append(element("dt", key), element("dd", value));
    return box;
  }));
  $("samples").replaceChildren(...result.guesses.slice(0, SHOWN).map((guess, i) => {
    const figure = document.createElement("figure"), canvas = document.createElement("canvas");
    const right = guess === facts.labels[i];
    draw(canvas, i);
    figure.append(canvas, element("figcaption", right ? name(guess) : `${name(guess)} (is ${name(facts.labels[i])})`,
      right ? "right" : "wrong"));
    return figure;
  }));
}

function row(model, result) {
  const cells = [model.file, model.bytes.toLocaleString("en"), (model.bytes / facts.fp32_bytes).toFixed(2),
    result.accuracy.toFixed(1), model.metric.toFixed(2), result.load.toFixed(0), result.ms.toFixed(2)];
  const tr = document.createElement("tr");
  tr.dataset.width = model.width;
  tr.append(...cells.map(cell => element("td", cell)));
  return tr;
}

async function choose(model) {
  $("state").textContent = `running ${model.width} …`;
  show(model, await measure(model));
  $("state").textContent = "";
}

async function all() {
  $("all").disabled = true;
  $("rows").replaceChildren();
  for (const model of facts.models) {
    $("state").textContent = `running ${model.width} …`;
    $("rows").append(row(model, await measure(model)));
  }
  $("state").textContent = "done";
  $("all").disabled = false;
}

async function start() {
  $("title").textContent = facts.title;
  $("about").textContent = "One model at many bit-widths, running in this page with ONNX Runtime's WebAssembly build. "
    + "Nothing leaves your computer. Few bits save bytes; the arithmetic is 8-bit integer or float.";
  facts.models.forEach((model, i) => {
    const label = document.createElement("label"), radio = document.createElement("input");
    Object.assign(radio, { type: "radio", name: "width", checked: i === 0, onchange: () => choose(model) });
    label.append(radio, model.width);
    $("widths").append(label);
  });
  $("all").onclick = all;
  await choose(facts.models[0]);
  if (location.hash === "#all") await all();
}

start().catch(error => { $("state").textContent = `failed: ${error.message}`; throw error; });
