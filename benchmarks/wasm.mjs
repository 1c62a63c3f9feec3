// Milliseconds of processor time per run of several modules, in turns; other work on the machine does not count.
// node --no-liftoff wasm.mjs TURNS A.wasm B.wasm … prints the median of each as JSON; the flag: optimized code from the start.
import { readFileSync } from "node:fs";

const LEAST = 20;
const [turns, ...files] = process.argv.slice(2);

function spent(run, repeats) {
  const before = process.cpuUsage();
  for (let i = 0; i < repeats; i++) run();
  const { user, system } = process.cpuUsage(before);
  return (user + system) / 1000 / repeats;
}

const modules = [];
for (const file of files) {
  const { instance } = await WebAssembly.instantiate(readFileSync(file));
  const { memory, input, input_size, run } = instance.exports;
  new Float32Array(memory.buffer, input(), input_size()).forEach((_, i, x) => { x[i] = Math.sin(i); });
  modules.push({ run, repeats: Math.ceil(LEAST / spent(run, 10)), times: [] });
}
for (let turn = 0; turn < Number(turns); turn++)
  for (const { run, repeats, times } of modules) times.push(spent(run, repeats));
console.log(JSON.stringify(modules.map(({ times }) => times.sort((a, b) => a - b)[times.length >> 1])));
