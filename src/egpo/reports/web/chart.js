// Draws one metric of all runs by step. All charts share the step axis and the cursor.

const HEIGHT = 190;
const MARGIN = { top: 10, right: 12, bottom: 22 };
const DOTTED = 40; // curves of at most this many points show each point

// There are six colours: the seventh run has the first colour again, dashed.
const lineClass = (place) => (place >= 6 ? "line dashed" : "line");

class Chart {
  constructor(settings, shared) {
    this.settings = settings;
    this.shared = shared;
    this.svg = drawn("svg", { tabindex: "0", role: "img", "aria-roledescription": "chart", class: "plot" });
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerdown", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => shared.moveCursor(null));
    this.svg.addEventListener("blur", () => shared.moveCursor(null));
    this.svg.addEventListener("keydown", (event) => this.walk(event));
    this.figure = element(
      "figure",
      { class: "chart" },
      element("figcaption", {}, element("h3", {}, settings.title), element("p", { class: "soft small" }, settings.note)),
      this.svg,
    );
  }

  // The curves of the runs that are shown.
  curves() {
    return this.shared.runs
      .map((run, place) => ({ place, name: run.name, raw: run.curves[this.settings.metric], shown: run.shown }))
      .filter((curve) => curve.shown && curve.raw && curve.raw.x.length);
  }

  format(value) {
    return this.settings.share ? percent(value) : figure(value);
  }

  draw() {
    this.width = Math.max(240, this.svg.parentNode.clientWidth - 24);
    this.found = this.curves().map((curve) => ({ ...curve, smooth: smoothed(curve.raw, this.shared.window) }));
    this.steps = [...new Set(this.found.flatMap((curve) => curve.raw.x))].sort((a, b) => a - b);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.svg.setAttribute("aria-label", this.described());
    this.svg.replaceChildren();
    if (!this.found.length) {
      this.svg.append(drawn("text", { x: this.width / 2, y: HEIGHT / 2, class: "none" }, "no visible run has this metric"));
      return;
    }
    this.drawAxes();
    for (const curve of this.found) this.drawCurve(curve);
    this.cursor = drawn("g", { class: "cursor" });
    this.svg.append(this.cursor);
  }

  drawAxes() {
    this.range = valueRange(this.found.flatMap((curve) => curve.raw.y));
    const rows = ticks(this.range.low, this.range.high, 4);
    const labels = rows.values.map((value) => tickLabel(value, rows.step, this.settings.share));
    this.left = 12 + 7 * Math.max(...labels.map((label) => label.length));
    const columns = ticks(...this.shared.stepRange, Math.max(3, Math.min(6, this.width / 70)));
    rows.values.forEach((value, i) => {
      const y = this.y(value);
      this.svg.append(drawn("line", { class: "grid", x1: this.left, x2: this.width - MARGIN.right, y1: y, y2: y }));
      this.svg.append(drawn("text", { class: "tick", x: this.left - 6, y: y + 4, "text-anchor": "end" }, labels[i]));
    });
    for (const step of columns.values.filter(Number.isInteger)) {
      this.svg.append(drawn("text", { class: "tick", x: this.x(step), y: HEIGHT - 5, "text-anchor": "middle" }, `${step}`));
    }
    if (this.range.above) {
      const text = `${this.range.above} above`;
      this.svg.append(drawn("text", { class: "tick", x: this.width - MARGIN.right, y: 18, "text-anchor": "end" }, text));
    }
  }

  drawCurve({ place, raw, smooth }) {
    const smoothing = smooth !== raw;
    const group = drawn("g", { class: `curve run-${place % 6}`, "data-run": place });
    if (smoothing) group.append(drawn("path", { class: "raw", d: this.path(raw) }));
    group.append(drawn("path", { class: lineClass(place), d: this.path(smooth) }));
    if (raw.x.length <= DOTTED && !smoothing) {
      raw.x.forEach((step, i) => group.append(drawn("circle", { r: 2.4, cx: this.x(step), cy: this.y(raw.y[i]) })));
    }
    this.svg.append(group);
  }

  path(curve) {
    return curve.x.map((step, i) => `${i ? "L" : "M"}${this.x(step).toFixed(1)} ${this.y(curve.y[i]).toFixed(1)}`).join("");
  }

  x(step) {
    const [low, high] = this.shared.stepRange;
    return this.left + ((step - low) / (high - low)) * (this.width - this.left - MARGIN.right);
  }

  y(value) {
    const part = (value - this.range.low) / (this.range.high - this.range.low);
    const inner = HEIGHT - MARGIN.top - MARGIN.bottom;
    return Math.max(2, MARGIN.top + (1 - part) * inner);
  }

  // All charts show the step of this chart that is nearest to the pointer.
  point(event) {
    if (!this.found.length) return;
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.width;
    const nearest = this.steps.reduce((a, b) => (Math.abs(this.x(b) - x) < Math.abs(this.x(a) - x) ? b : a));
    this.shared.moveCursor(nearest);
    tooltip.show(event.clientX, event.clientY, ...this.reading(nearest));
  }

  walk(event) {
    const last = this.steps.length - 1;
    const at = this.steps.indexOf(this.shared.step);
    const next = { ArrowLeft: at < 0 ? last : at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.shared.moveCursor(null);
    if (next === undefined || last < 0) return;
    event.preventDefault();
    const step = this.steps[Math.max(0, Math.min(last, next))];
    this.shared.moveCursor(step);
    const box = this.svg.getBoundingClientRect();
    tooltip.show(box.left + (this.x(step) / this.width) * box.width, box.top + 20, ...this.reading(step));
  }

  reading(step) {
    const rows = this.found.map((curve) => {
      const at = curve.raw.x.indexOf(step);
      const value = at < 0 ? "–" : this.format(curve.raw.y[at]);
      const mean = at >= 0 && curve.smooth !== curve.raw ? ` (mean ${this.format(curve.smooth.y[at])})` : "";
      return element("div", {}, swatch(curve.place), `${curve.name} `, element("b", {}, value), mean);
    });
    return [element("div", { class: "soft" }, `step ${step}`), ...rows];
  }

  showCursor(step) {
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    if (step === null || !this.found.length) return;
    const x = this.x(step);
    this.cursor.append(drawn("line", { x1: x, x2: x, y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom }));
    for (const curve of this.found) {
      const at = curve.raw.x.indexOf(step);
      if (at < 0) continue;
      const place = { class: `dot run-${curve.place % 6}`, r: 3.5, cx: x, cy: this.y(curve.smooth.y[at]) };
      this.cursor.append(drawn("circle", place));
    }
  }

  described() {
    const ends = this.found.map(({ name, raw }) => {
      const last = raw.x.length - 1;
      return `${name} from ${this.format(raw.y[0])} at step ${raw.x[0]} to ${this.format(raw.y[last])} at step ${raw.x[last]}`;
    });
    return `${this.settings.title}: ${ends.join("; ") || "no values"}`;
  }
}
