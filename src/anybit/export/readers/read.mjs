// A reader of archives of anybit, version 2, for browsers and node; docs/file-formats.md describes the file.
//
//   import { readArchive } from "./read.mjs";
//   const model = await readArchive(bytes, { publicKey, signature });   // if it is signed: PEM text, and 64 bytes
//   const logits = model.run(input);               // bytes or floats before their normalization, as model.input says
//
//   node read.mjs model.w4.safetensors [INPUTS OUTPUTS] [--key FILE.pub]
//
// Digest, format and test vector are checked before anything is returned; what does not fit is an Error of one line. Sums
// are in double and every result is rounded to float32, as the reader in C does.

const f = Math.fround;
const FORMAT = "anybit-archive-2", MOST = 2 ** 28;
const FACTS = ["packed", "activations", "input", "output", "graph", "test"];

export async function readArchive(content, { publicKey, signature } = {}) {
  const bytes = Uint8Array.from(content);
  if (publicKey) await checkSignature(bytes, publicKey, signature);
  const length = bytes.length < 8 ? Infinity : Number(new DataView(bytes.buffer).getBigUint64(0, true));
  if (length > bytes.length - 8) refuse("it ends inside its header");
  const text = new TextDecoder("latin1").decode(bytes.subarray(8, 8 + length));
  await checkDigest(bytes, text);
  const { __metadata__: metadata, ...entries } = parsed(text);
  if (metadata?.format !== FORMAT) refuse(`its format is '${metadata?.format}', and this reader knows ${FORMAT}`);
  if (metadata.no_graph) refuse(`it has weights and no graph: ${metadata.no_graph}`);
  const facts = Object.fromEntries(FACTS.map(key => [key, parsed(metadata[key])]));
  const model = new Model(bytes.subarray(8 + length), entries, facts, metadata.width);
  model.check();
  return model;
}

async function checkSignature(bytes, publicKey, signature) {
  const der = Uint8Array.from(atob(publicKey.replace(/-----[^-]+-----|\s/g, "")), c => c.charCodeAt(0));
  const key = await crypto.subtle.importKey("spki", der, "Ed25519", false, ["verify"]);
  if (!signature || !await crypto.subtle.verify("Ed25519", key, signature, bytes)) refuse("it is not signed with this key");
}

async function checkDigest(bytes, text) {
  const place = text.indexOf('"sha256":"') + 10, covered = bytes.slice();
  if (place < 10 || place + 64 > text.length) refuse("it has no digest");
  covered.fill(48, 8 + place, 8 + place + 64);      // "0"
  const found = new Uint8Array(await crypto.subtle.digest("SHA-256", covered));
  const hex = Array.from(found, byte => byte.toString(16).padStart(2, "0")).join("");
  if (hex !== text.slice(place, place + 64)) refuse("it is damaged: its SHA-256 does not match");
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return refuse("its header is not JSON"); }
}

function refuse(why) { throw new Error(`refused: ${why}`); }

const product = numbers => numbers.reduce((a, b) => a * b, 1);

function nearest(v) {                               // half to even
  return Math.abs(v % 1) === 0.5 ? 2 * Math.round(v / 2) : Math.round(v);
}

class Model {
  constructor(body, entries, facts, width) {
    Object.assign(this, { body, entries, width, ...facts, values: new Map() });
    this.size = product(this.input.shape);
  }

  tensor(name, wanted) {                            // the numbers of a tensor; of a packed one, step * (code + low)
    const { dtype, data_offsets: [begin, end] } = this.entries[name] ?? refuse(`it has no tensor '${name}'`);
    if (!(begin >= 0 && begin <= end && end <= this.body.length)) refuse(`tensor '${name}' does not fit the file`);
    const raw = this.body.slice(begin, end), grid = Object.hasOwn(this.packed, name) && this.packed[name];
    const plain = dtype === "F32" ? new Float32Array(raw.buffer, 0, raw.length >> 2) : raw;
    const size = grid ? product(grid.shape) : plain.length;
    if (wanted !== undefined && size !== wanted) refuse(`'${name}' has ${size} numbers and not ${wanted}`);
    if (!grid) return plain;
    const steps = this.tensor(`${name}.step`), codes = 2 ** grid.bits - 1;
    if (raw.length !== Math.ceil(size * grid.bits / 8) || size % steps.length) refuse(`'${name}' has another size`);
    return Float32Array.from({ length: size }, (_, i) => {
      const bit = i * grid.bits, byte = Math.floor(bit / 8), both = raw[byte] | (raw[byte + 1] ?? 0) << 8;
      return f(steps[Math.floor(i * steps.length / size)] * (((both >> bit % 8) & codes) + grid.low));
    });
  }

  parameter(node, key, size) {
    if (!(key in node)) return undefined;
    if (!this.values.has(node[key])) this.values.set(node[key], this.tensor(node[key], size));
    return this.values.get(node[key]);
  }

  normalized(raw) {
    const { type, mean, std } = this.input, area = this.size / (mean.length || 1);
    if (raw.length !== this.size) refuse(`an input has ${this.size} numbers, and not ${raw.length}`);
    return Float32Array.from(raw, (v, i) => {
      const x = type === "U8" ? f(v / 255) : v, c = Math.floor(i / area);
      return mean.length ? f(f(x - f(mean[c])) / f(std[c])) : x;
    });
  }

  run(raw) {
    const values = [{ x: this.normalized(raw), shape: this.input.shape }];      // every node adds one
    for (const node of this.graph) {
      if (product(node.shape) > MOST) refuse("a value has too many numbers");
      if (!Object.hasOwn(OPERATIONS, node.op)) refuse(`it has the operation '${node.op}', which this reader does not know`);
      const given = node.in.map(i => values[i] ?? refuse(`'${node.op}' has no input`));
      const x = OPERATIONS[node.op](this, node, ...given);
      if (x.length !== product(node.shape)) refuse(`'${node.op}' gives ${x.length} numbers and not ${product(node.shape)}`);
      values.push({ x, shape: node.shape });
    }
    return values.at(-1).x;
  }

  runAll(raw) {
    const starts = Array.from({ length: raw.length / this.size }, (_, n) => n * this.size);
    return Float32Array.from(starts.flatMap(start => Array.from(this.run(raw.subarray(start, start + this.size)))));
  }

  check() {                                         // the largest difference to the test vector
    const outputs = this.tensor("test/outputs"), found = this.runAll(this.tensor("test/inputs"));
    if (!found.length || found.length !== outputs.length) refuse("its test vector has another size");
    const worst = Math.max(...found.map((v, i) => Math.abs(v - outputs[i])));
    if (!(worst <= this.test.tolerance)) refuse(`its test vector is missed by ${worst}, more than ${this.test.tolerance}`);
    return worst;
  }
}

const filled = (shape, number) => Float32Array.from({ length: product(shape) }, (_, i) => number(i));
const each = number => (model, node, { x }) => x.map(v => number(v, node));
const two = number => (model, node, a, b) => a.x.map((v, i) => number(v, b.x[Math.floor(i * b.x.length / a.x.length)]));
const hard = v => Math.min(Math.max(v + 3, 0), 6) / 6;

function windows(model, node, { x, shape }, start, add, end) {
  const [height, width] = [shape.length > 2 ? shape[1] : 1, shape.at(-1)], [ky, kx] = node.kernel;
  const columns = node.shape.at(-1), area = product(node.shape.slice(1));
  const groups = node.groups ?? shape[0], part = shape[0] / groups, outs = node.shape[0] / groups;
  return filled(node.shape, i => {
    const o = Math.floor(i / area), top = Math.floor(i % area / columns) * node.stride[0] - node.padding[0];
    const left = i % columns * node.stride[1] - node.padding[1], first = Math.floor(o / outs) * part;
    let sum = start, inside = 0, all = 0;
    for (let c = 0, j = o * part * ky * kx; c < part; c++) {
      for (let y = top, a = 0; a < ky; a++, y += node.dilation[0]) {
        for (let at = left, b = 0; b < kx; b++, j++, at += node.dilation[1]) {
          all += y < height + node.padding[0] && at < width + node.padding[1];
          if (y < 0 || y >= height || at < 0 || at >= width) continue;
          sum = add(sum, x[((first + c) * height + y) * width + at], j);
          inside++;
        }
      }
    }
    return end(sum, o, inside, all);
  });
}

function conv(model, node, a) {
  const size = product([a.shape[0] / node.groups, ...node.kernel, node.shape[0]]);
  const weight = model.parameter(node, "weight", size), bias = model.parameter(node, "bias", node.shape[0]);
  return windows(model, node, a, 0, (sum, v, j) => sum + v * weight[j], (sum, o) => bias ? sum + bias[o] : sum);
}

function linear(model, node, { x, shape }) {
  const [from, to] = [shape.at(-1), node.shape.at(-1)];
  const weight = model.parameter(node, "weight", from * to), bias = model.parameter(node, "bias", to);
  return filled(node.shape, i => {
    let sum = 0;
    for (let j = 0, row = Math.floor(i / to) * from, w = i % to * from; j < from; j++) sum += x[row + j] * weight[w + j];
    return bias ? sum + bias[i % to] : sum;
  });
}

function norm(model, node, { x, shape }) {
  const [channels] = shape, groups = node.groups ?? channels, size = x.length / groups, area = x.length / channels;
  const [weight, bias, means, variances] = ["weight", "bias", "mean", "variance"].map(
    key => model.parameter(node, key, channels));
  const y = new Float32Array(x.length);
  for (let g = 0; g < groups; g++) {
    let mean = means?.[g] ?? 0, variance = variances?.[g] ?? 0;
    if (!means) {
      for (let i = g * size; i < (g + 1) * size; i++) mean += x[i];
      mean /= size;
      for (let i = g * size; i < (g + 1) * size; i++) variance += (x[i] - mean) * (x[i] - mean);
      variance /= size;
    }
    for (let i = g * size; i < (g + 1) * size; i++) {
      const c = Math.floor(i / area);
      y[i] = (x[i] - mean) / Math.sqrt(variance + node.eps) * (weight?.[c] ?? 1) + (bias?.[c] ?? 0);
    }
  }
  return y;
}

function quantize(model, { site }, { x }) {
  const { low, high, offset } = model.activations[site], [step] = model.tensor(`${site}.step`, 1);
  return x.map(v => step * Math.min(Math.max(f(nearest(f(f(v / step) - offset)) + offset), low), high));
}

function window(model, { shape, axes, start, step, value }, a) {
  const strides = a.shape.map((_, d) => product(a.shape.slice(d + 1)));
  return filled(shape, i => {
    let place = 0;
    for (let d = shape.length - 1; d >= 0; i = Math.floor(i / shape[d]), d--) {
      const at = start[d] + step[d] * (i % shape[d]);
      if (at < 0 || at >= a.shape[axes[d]]) return value;
      place += at * strides[axes[d]];
    }
    return a.x[place];
  });
}

function mean(model, { shape }, { x }) {
  const size = x.length / product(shape);
  return filled(shape, i => x.subarray(i * size, (i + 1) * size).reduce((a, b) => a + b, 0) / size);
}

const OPERATIONS = {
  conv, linear, quantize, window, mean, group_norm: norm, batch_norm: norm,
  max_pool: (model, node, a) => windows(model, node, a, -Infinity, (sum, v) => Math.max(sum, v), sum => sum),
  avg_pool: (model, node, a) => windows(model, node, a, 0, (sum, v) => sum + v,
    (sum, o, inside, all) => sum / (node.border ? all : inside)),
  relu: each(v => Math.max(v, 0)), leaky_relu: each((v, { slope }) => v > 0 ? v : v * slope),
  clamp: each((v, { low = -Infinity, high = Infinity }) => Math.min(Math.max(v, low), high)),
  sigmoid: each(v => 1 / (1 + Math.exp(-v))), silu: each(v => v / (1 + Math.exp(-v))), tanh: each(Math.tanh),
  hardsigmoid: each(hard), hardswish: each(v => v * hard(v)), scale: each((v, { factor, shift }) => v * factor + shift),
  reshape: each(v => v), add: two((a, b) => a + b), sub: two((a, b) => a - b), mul: two((a, b) => a * b),
  cat: (model, node, ...parts) => Float32Array.from(parts.flatMap(({ x }) => Array.from(x))),
};

async function main(path, ...rest) {
  const { readFileSync, writeFileSync } = await import("node:fs");
  const at = rest.indexOf("--key"), [, key] = at < 0 ? [] : rest.splice(at, 2), [inputs, outputs] = rest;
  const signed = key && { publicKey: readFileSync(key, "utf-8"), signature: readFileSync(`${path}.sig`) };
  const model = await readArchive(readFileSync(path), signed || {});
  console.log(`${path}: ${model.width}, test vector within ${model.check()}`);
  if (!inputs) return;
  const raw = Uint8Array.from(readFileSync(inputs));
  const found = model.runAll(model.input.type === "U8" ? raw : new Float32Array(raw.buffer));
  writeFileSync(outputs, new Uint8Array(found.buffer));
}

if (/[\\/]read\.mjs$/.test(globalThis.process?.argv?.[1])) {       // run, and not imported
  main(...process.argv.slice(2)).catch(error => { console.error(error.message); process.exitCode = 1; });
}
