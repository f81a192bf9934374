// Formatting of numbers, axes, and what is computed from a curve {x, y}: smoothing and differences.

function figure(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en-US", { maximumFractionDigits: size >= 100 ? 1 : size >= 1 ? 3 : 4 });
}

const percent = (value) => `${(100 * value).toFixed(1)} %`;
const signed = (text, value) => (value > 0 ? `+${text}` : text);

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

// Powers of ten; between few of them also 2 and 5 times each. For a narrow range, the ticks of a linear axis.
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  if (decades < 1) return ticks(low, high, 4).values;
  const parts = decades > 2 ? [1] : [1, 2, 5];
  const every = Math.max(1, Math.ceil(decades / 5));
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += every) {
    found.push(...parts.map((part) => part * 10 ** power));
  }
  return found.filter((value) => value >= low && value <= high);
}

function tickLabel(value, step, share) {
  if (share) return `${+(100 * value).toFixed(step < 0.01 ? 1 : 0)} %`;
  if (Math.abs(value) >= 1e5 || (step < 0.0005 && value !== 0)) return value.toExponential(step < 0.0005 ? 1 : 0);
  return value.toFixed(Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
}

const logLabel = (value, share) =>
  share ? `${+(100 * value).toPrecision(3)} %` : value >= 0.01 && value < 1e4 ? `${+value.toPrecision(3)}` : value.toExponential(0);

// The axis starts at 0 if that wastes at most half of the height. Rare values far above all others (an exploded
// gradient) do not flatten the rest: they are cut off at the top and counted in `above`.
function valueRange(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const usual = sorted[Math.floor(0.98 * (sorted.length - 1))];
  const highest = sorted[sorted.length - 1];
  const cut = sorted.length >= 20 && usual > 0 && highest > 8 * usual;
  let high = cut ? 1.5 * usual : highest;
  let low = sorted[0] >= 0 && sorted[0] <= high / 2 ? 0 : sorted[0];
  // Differences that are equal in exact arithmetic may differ in their last digits.
  if (high - low <= 1e-9 * Math.max(Math.abs(low), Math.abs(high))) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const room = 0.06 * (high - low);
  return { low: low === 0 ? 0 : low - room, high: high + room, above: cut ? sorted.filter((v) => v > high).length : 0 };
}

// Positive values only: a logarithmic axis has no place for the others.
function logRange(values) {
  const low = values.reduce((a, b) => Math.min(a, b));
  const high = values.reduce((a, b) => Math.max(a, b));
  return low === high ? { low: low / 2, high: high * 2, above: 0 } : { low: low / 1.15, high: high * 1.15, above: 0 };
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

// The points for which `keep(step, value)` holds.
function points(curve, keep) {
  const kept = curve.x.map((_, i) => i).filter((i) => keep(curve.x[i], curve.y[i]));
  return { x: kept.map((i) => curve.x[i]), y: kept.map((i) => curve.y[i]) };
}

// The curve minus the base, at the steps that both have.
function difference(curve, base) {
  const known = new Map(base.x.map((step, i) => [step, base.y[i]]));
  const shared = points(curve, (step) => known.has(step));
  return { x: shared.x, y: shared.y.map((value, i) => value - known.get(shared.x[i])) };
}
