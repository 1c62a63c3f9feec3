// Reads examples from one file and writes the outputs to another, both float32 without a header.
import { readFileSync, writeFileSync } from "node:fs";

const [, , model, from, to] = process.argv;
const { instance } = await WebAssembly.instantiate(readFileSync(model));
const { memory, input, output, input_size, output_size, run } = instance.exports;
const bytes = readFileSync(from), given = new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4);
const x = new Float32Array(memory.buffer, input(), input_size());
const y = new Float32Array(memory.buffer, output(), output_size());
const found = new Float32Array(given.length / x.length * y.length);
for (let i = 0; i * x.length < given.length; i++) {
  x.set(given.subarray(i * x.length, (i + 1) * x.length));
  if (run() !== 0) throw new Error("the network refused an example");
  found.set(y, i * y.length);
}
writeFileSync(to, found);
