// From a drawing or an image to what the network gets: the way the images of the data set went.

const SIDE = 32, CELL = 4, WIDEST = 24, INK = 312, THIN = 1.5, THICK = 4.5, HALVINGS = 5;

// The digits of the UCI set are 32×32 bitmaps of black and white; a pixel of the set counts the black ones among 4×4. All
// are as high as the bitmap, at most about 24 wide and, whatever the digit, 312 of the 1,024 are black: so is a drawing here.
// `strokes`: lists of {x, y} in any unit. Returns bytes, 255 for 16 black pixels; null if nothing is drawn.
export function digit(strokes) {
  if (!strokes.length) return null;
  let [thin, thick] = [THIN, THICK], black = [];
  for (let i = 0; i < HALVINGS; i++) {
    const radius = (thin + thick) / 2;
    black = bitmap(strokes, radius);
    if (black.length < INK) thin = radius;
    else thick = radius;
  }
  const counts = new Uint8Array((SIDE / CELL) ** 2);
  for (const { x, y } of black) counts[(y / CELL | 0) * SIDE / CELL + (x / CELL | 0)]++;
  return counts.map(count => Math.round(count * 255 / CELL ** 2));
}

// The black pixels of strokes with a round pen, moved to the middle and as large as the bitmap allows.
export function bitmap(strokes, radius) {
  const points = strokes.flat(), ends = axis => [Math.min(...points.map(p => p[axis])), Math.max(...points.map(p => p[axis]))];
  const [left, right] = ends("x"), [top, bottom] = ends("y");
  const scale = Math.min((SIDE - 2 * radius) / Math.max(bottom - top, 1e-6), (WIDEST - 2 * radius) / Math.max(right - left, 1e-6));
  const lines = strokes.map(stroke => stroke.map(p => ({ x: SIDE / 2 + scale * (p.x - (left + right) / 2),
    y: SIDE / 2 + scale * (p.y - (top + bottom) / 2) })));
  return Array.from({ length: SIDE * SIDE }, (_, i) => ({ x: i % SIDE, y: i / SIDE | 0 }))
    .filter(({ x, y }) => lines.some(line => touches(line, x + 0.5, y + 0.5, radius)));
}

function touches(line, x, y, radius) {
  for (let i = 0; i < line.length; i++) {
    const a = line[i], b = line[Math.min(i + 1, line.length - 1)], dx = b.x - a.x, dy = b.y - a.y;
    const along = Math.min(1, Math.max(0, ((x - a.x) * dx + (y - a.y) * dy) / (dx * dx + dy * dy || 1)));
    if ((a.x + along * dx - x) ** 2 + (a.y + along * dy - y) ** 2 <= radius * radius) return true;
  }
  return false;
}

// (x/255 − mean)/std per channel, every step rounded to float32, as the pipeline of the training does.
export function normalized(bytes, { shape, mean, std }) {
  const f = Math.fround, plane = shape[1] * shape[2];
  return Float32Array.from(bytes, (value, i) => {
    const c = i / plane | 0;
    return f(f(f(value / 255) - f(mean[c])) / f(std[c]));
  });
}

// RGBA to bytes per channel; the grey of one channel weighs colours as the eye does.
export function planes(rgba, channels) {
  const size = rgba.length / 4, bytes = new Uint8Array(channels * size);
  for (let i = 0; i < size; i++) {
    const [r, g, b] = rgba.subarray(4 * i, 4 * i + 3);
    if (channels === 1) bytes[i] = Math.round(0.299 * r + 0.587 * g + 0.114 * b);
    else [r, g, b].forEach((value, c) => { bytes[c * size + i] = value; });
  }
  return bytes;
}

// What the network gets, back as RGBA, to be shown.
export function shown(input, { shape, mean, std }) {
  const [channels, rows, columns] = shape, plane = rows * columns, rgba = new Uint8ClampedArray(4 * plane);
  for (let i = 0; i < plane; i++) {
    for (let c = 0; c < 3; c++) {
      const from = channels === 3 ? c : 0;
      rgba[4 * i + c] = Math.round(255 * (input[from * plane + i] * std[from] + mean[from]));
    }
    rgba[4 * i + 3] = 255;
  }
  return rgba;
}

export function samples({ samples: { type, data }, shape, mean, std }) {
  const bytes = Uint8Array.from(atob(data), c => c.charCodeAt(0)), size = shape[0] * shape[1] * shape[2];
  const all = type === "uint8" ? bytes : new Float32Array(bytes.buffer);
  return Array.from({ length: all.length / size }, (_, i) => {
    const one = all.subarray(i * size, (i + 1) * size);
    return type === "uint8" ? normalized(one, { shape, mean, std }) : one;
  });
}
