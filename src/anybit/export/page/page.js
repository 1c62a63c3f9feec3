import { digit, normalized, planes, samples, shown } from "./pixels.js";

const ALL = 12, TOP = 5, RUNS = 200, TIMED = 5, TIMES = 8, PAUSE = 300;
const $ = id => document.getElementById(id);
const facts = JSON.parse($("facts").textContent);
const images = samples(facts), [channels, height, width] = facts.shape;
const rows = [];
let input = images[0], strokes = [], turn = 0, waiting = 0;

const name = label => facts.classes[label] ?? String(label);
const kilobytes = bytes => bytes < 1e6 ? `${Math.round(bytes / 1000)} KB` : `${(bytes / 1e6).toFixed(2)} MB`;

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.textContent = text;
  return made;
}

// A row of the comparison: what is known of a width before anything is loaded, and where its answer will be.
function row(model) {
  const tr = element("tr"), cell = (className, text = "") => tr.appendChild(element("td", className, text));
  tr.dataset.width = model.width;
  cell("width", model.float ? "float" : model.width);
  const size = cell("size", kilobytes(model.bytes)), share = element("i");
  share.style.width = `${100 * model.bytes / Math.max(...facts.models.map(m => m.bytes))}%`;
  size.title = `${model.bytes.toLocaleString("en")} bytes`;
  size.append(share);
  cell("metric", model.metric);
  $("rows").append(tr);
  return { model, answer: cell("answer"), bars: cell("bars"), time: cell("time"), tr };
}

async function load(row) {
  const content = await fetch(row.model.file);
  if (!content.ok) throw new Error(`${row.model.file} is not there (${content.status})`);
  const { instance } = await WebAssembly.instantiate(await content.arrayBuffer());
  const { memory, input: x, output: y, input_size: inputs, output_size: outputs, run } = instance.exports;
  row.x = new Float32Array(memory.buffer, x(), inputs());
  row.y = new Float32Array(memory.buffer, y(), outputs());
  row.run = run;
  show(row);
  time(row);
}

// The best of some measurements with pauses: a browser first runs code that it compiled in haste, and then better one.
async function time(row) {
  let best = Infinity;
  for (let i = 0; i < TIMES; i++) {
    const start = performance.now();
    let runs = 0;
    while (runs < RUNS && performance.now() - start < TIMED) { row.run(); runs++; }
    best = Math.min(best, (performance.now() - start) / runs);
    row.time.textContent = `${best.toFixed(2)} ms`;
    await new Promise(resolve => setTimeout(resolve, PAUSE));
  }
}

function probabilities(row) {
  row.x.set(input);
  row.run();
  const top = Math.max(...row.y), parts = Array.from(row.y, v => Math.exp(v - top)), sum = parts.reduce((a, b) => a + b);
  return parts.map(part => part / sum);
}

function show(row) {
  const p = probabilities(row), best = p.indexOf(Math.max(...p)), order = p.map((_, i) => i);
  const listed = p.length <= ALL ? order : order.sort((a, b) => p[b] - p[a]).slice(0, TOP);
  row.answer.textContent = name(best);
  row.answer.title = `${(100 * p[best]).toFixed(1)} %`;
  row.bars.replaceChildren(...listed.map(i => {
    const bar = element("span", i === best ? "bar best" : "bar"), fill = element("i");
    fill.style.height = `${100 * p[i]}%`;
    bar.title = `${name(i)}: ${(100 * p[i]).toFixed(1)} %`;
    bar.append(fill, element("b", "", name(i)));
    return bar;
  }));
  row.tr.dataset.answer = name(best);
}

// All loaded widths answer, one after another; a newer image ends the turn.
async function answer() {
  const mine = ++turn;
  paint($("small"), input);
  for (const row of rows.filter(r => r.run)) {
    if (mine !== turn) return;
    show(row);
    await new Promise(resolve => setTimeout(resolve));
  }
}

function paint(canvas, pixels) {
  canvas.width = width;
  canvas.height = height;
  canvas.getContext("2d").putImageData(new ImageData(shown(pixels, facts), width, height), 0, 0);
}

function choose(pixels, button) {
  strokes = [];
  input = pixels;
  $("hint").hidden = !facts.drawn;
  document.querySelectorAll("#samples button").forEach(b => b.setAttribute("aria-pressed", String(b === button)));
  paint($("pad"), pixels);
  $("pad").className = "picture";
  return answer();
}

function ink() {
  const pad = $("pad"), side = Math.round(pad.clientWidth * devicePixelRatio), context = pad.getContext("2d");
  pad.className = "";
  pad.width = pad.height = side;
  Object.assign(context, { lineWidth: side / 14, lineCap: "round", lineJoin: "round", strokeStyle: "#fff", fillStyle: "#fff" });
  for (const stroke of strokes) {
    context.beginPath();
    stroke.forEach(p => context.lineTo(side * p.x, side * p.y));
    if (stroke.length === 1) context.lineTo(side * stroke[0].x, side * stroke[0].y + 0.1);
    context.stroke();
  }
}

function drawn() {
  ink();
  waiting ||= setTimeout(() => {
    waiting = 0;
    input = normalized(digit(strokes) ?? new Uint8Array(height * width), facts);
    answer();
  }, 16);
}

function pen() {
  const pad = $("pad"), at = event => {
    const box = pad.getBoundingClientRect();
    return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
  };
  let drawing = false;
  pad.onpointerdown = event => {
    event.preventDefault();
    drawing = true;
    $("hint").hidden = true;
    document.querySelectorAll("#samples button").forEach(b => b.setAttribute("aria-pressed", "false"));
    strokes.push([at(event)]);
    drawn();
  };
  addEventListener("pointermove", event => {
    if (!drawing) return;
    strokes.at(-1).push(at(event));
    drawn();
  });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { drawing = false; });
  $("clear").onclick = () => { strokes = []; drawn(); };
}

async function upload(file) {
  const bitmap = await createImageBitmap(file), canvas = new OffscreenCanvas(width, height), context = canvas.getContext("2d");
  const scale = Math.max(width / bitmap.width, height / bitmap.height);
  const [w, h] = [bitmap.width * scale, bitmap.height * scale];
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, (width - w) / 2, (height - h) / 2, w, h);
  await choose(normalized(planes(context.getImageData(0, 0, width, height).data, channels), facts), null);
}

function transferred() {
  const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
  return entries.reduce((sum, entry) => sum + entry.encodedBodySize, 0);
}

function offer(row) {
  const button = element("button", "", "load");
  button.type = "button";
  button.onclick = async () => {
    button.disabled = true;
    button.textContent = "…";
    await load(row);
  };
  row.answer.append(button);
}

async function start() {
  $("unserved").hidden = true;
  $("page").hidden = false;
  $("about").textContent = `${facts.title}. Every row is the same trained network with weights of fewer bits, compiled to `
    + "WebAssembly and run by this page; nothing leaves your computer.";
  $("metric").textContent = facts.metric;
  $("metric").title = `on all ${facts.test_images.toLocaleString("en")} test images, in WebAssembly`;
  $("hint").textContent = "draw a digit here";
  document.body.classList.toggle("drawn", facts.drawn);
  rows.push(...facts.models.map(row));
  $("samples").append(...images.map((pixels, i) => {
    const button = element("button"), canvas = element("canvas");
    button.type = "button";
    button.title = button.ariaLabel = name(facts.samples.labels[i]);
    button.onclick = () => choose(pixels, button);
    paint(canvas, pixels);
    button.append(canvas);
    return button;
  }));
  if (facts.drawn) pen();
  $("file").onchange = () => $("file").files[0] && upload($("file").files[0]);
  rows.filter(r => r.model.float).forEach(offer);
  await choose(images[0], document.querySelector("#samples button"));
  const [first, ...others] = rows.filter(r => !r.model.float);
  if (first) {
    await load(first);
    await new Promise(resolve => setTimeout(resolve));
    const said = `${first.model.width} answered after ${kilobytes(transferred())} of download`;
    for (const row of others) {
      $("state").textContent = `${said}; loading ${row.model.width} …`;
      await load(row);
    }
    $("state").textContent = `${said}, all widths after ${kilobytes(transferred())}.`;
  }
  document.body.dataset.ready = "yes";
}

start().catch(error => { $("state").textContent = `failed: ${error.message}`; throw error; });
