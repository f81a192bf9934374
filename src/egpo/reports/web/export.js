// Downloads a chart as PNG or as CSV, and all metrics as CSV. Everything is made in the page: nothing is requested.

const PNG_SCALE = 2;
const DRAWN_STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-family", "text-anchor"];

const exportButtons = (chart) =>
  element("div", { class: "exports" },
    button("PNG", () => exportPng(chart), { "aria-label": `${chart.settings.title} as PNG` }),
    button("CSV", () => download(`${fileName(chart.settings.metric)}.csv`, chartCsv(chart)), { "aria-label": `${chart.settings.title} as CSV` }));

const fileName = (text) => text.replace(/[^\w@.-]+/g, "_");

function download(name, content, type = "text/csv") {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
}

// Quotes a cell. A spreadsheet would read text that starts like this as a formula.
function csvCell(value) {
  if (typeof value === "number") return `${value}`;
  const text = /^[=+\-@\t]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const csvLines = (rows) => rows.map((row) => row.map(csvCell).join(",")).join("\n") + "\n";

// What the chart shows: one row for each step, one column for each run.
function chartCsv(chart) {
  const values = chart.found.map(({ raw }) => new Map(raw.x.map((step, i) => [step, raw.y[i]])));
  const rows = chart.steps.map((step) => [step, ...values.map((known) => known.get(step) ?? "")]);
  return csvLines([["step", ...chart.found.map(({ name }) => name)], ...rows]);
}

// Every metric of every run: one row for each value.
function allCsv(runs) {
  const rows = runs.flatMap((run) =>
    Object.entries(run.curves).flatMap(([metric, curve]) => curve.x.map((step, i) => [run.name, metric, step, curve.y[i]])));
  return csvLines([["run", "metric", "step", "value"], ...rows]);
}

// A copy of the drawing that needs no style sheet, with its title and legend.
function standalone(chart) {
  const copy = chart.svg.cloneNode(true);
  const [from, to] = [chart.svg, copy].map((svg) => [svg, ...svg.querySelectorAll("*")]);
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of DRAWN_STYLES) to[i].setAttribute(name, style.getPropertyValue(name));
  });
  copy.querySelectorAll(".cursor, .band").forEach((node) => node.remove());
  return copy;
}

function exportPng(chart) {
  const page = getComputedStyle(document.documentElement);
  const colour = (name) => page.getPropertyValue(name).trim();
  const head = 30 + 18 * chart.found.length;
  const [width, height] = [chart.width, HEIGHT + head];
  const copy = standalone(chart);
  copy.setAttribute("y", head);
  copy.setAttribute("width", width);
  copy.setAttribute("height", HEIGHT);
  const text = (x, y, content, size) => drawn("text", { x, y, fill: colour("--ink"), "font-size": size, "font-family": "sans-serif" }, content);
  const rows = chart.found.flatMap(({ place, name }, i) => [
    drawn("rect", { x: 12, y: 32 + 18 * i, width: 18, height: 4, fill: colour(`--run-${place % 6}`) }),
    text(38, 38 + 18 * i, name, 12),
  ]);
  const whole = drawn("svg", { width, height, viewBox: `0 0 ${width} ${height}` },
    drawn("rect", { width, height, fill: colour("--panel") }), text(12, 20, chart.settings.title, 15), ...rows, copy);
  drawPng(new XMLSerializer().serializeToString(whole), width, height, `${fileName(chart.settings.metric)}.png`);
}

function drawPng(svg, width, height, name) {
  const image = new Image();
  image.addEventListener("load", () => {
    const canvas = element("canvas", { width: PNG_SCALE * width, height: PNG_SCALE * height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => download(name, blob), "image/png");
  });
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}
