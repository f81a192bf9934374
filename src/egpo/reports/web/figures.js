// Formatting of numbers, and axes.

function figure(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en-US", { maximumFractionDigits: size >= 100 ? 1 : size >= 1 ? 3 : 4 });
}

const percent = (value) => `${(100 * value).toFixed(1)} %`;

// A round tick distance (1, 2 or 5 times a power of ten) that gives about `count` ticks.
function roundStep(range, count) {
  const rough = range / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((part) => part * power).find((step) => step >= rough * 0.7);
}

function ticks(low, high, count) {
  const step = roundStep(high - low, count);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return { step, values: found };
}

function tickLabel(value, step, share) {
  if (share) return `${+(100 * value).toFixed(step < 0.01 ? 1 : 0)} %`;
  if (Math.abs(value) >= 1e5 || (step < 0.0005 && value !== 0)) return value.toExponential(step < 0.0005 ? 1 : 0);
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
}

// The axis starts at 0 if that wastes at most half of the height. Rare values far above all others (an exploded
// gradient) do not flatten the rest: they are cut off at the top and counted in `above`.
function valueRange(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const usual = sorted[Math.floor(0.98 * (sorted.length - 1))];
  const highest = sorted[sorted.length - 1];
  const cut = sorted.length >= 20 && usual > 0 && highest > 8 * usual;
  let high = cut ? 1.5 * usual : highest;
  let low = sorted[0] >= 0 && sorted[0] <= high / 2 ? 0 : sorted[0];
  if (high === low) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const room = 0.06 * (high - low);
  return { low: low === 0 ? 0 : low - room, high: high + room, above: cut ? sorted.filter((v) => v > high).length : 0 };
}

// At each point the mean of the points within the last `window` steps. Points farther apart than that stay as they are.
function smoothed(curve, window) {
  if (!curve.x.some((step, i) => i && step - curve.x[i - 1] < window)) return curve;
  let start = 0;
  let sum = 0;
  const y = curve.x.map((step, i) => {
    sum += curve.y[i];
    while (curve.x[start] <= step - window) sum -= curve.y[start++];
    return sum / (i - start + 1);
  });
  return { x: curve.x, y };
}
