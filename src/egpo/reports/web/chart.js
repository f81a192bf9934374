// Draws one metric of all runs by step. All charts share the step axis, the zoom and the cursor.

const HEIGHT = 214;
const MARGIN = { top: 16, right: 12, bottom: 38, left: 18 };
const DOTTED = 40; // curves of at most this many points show each point
const DRAG = 6; // pixels; a shorter movement is a click

// There are six colours: the seventh run has the first colour again, dashed.
const lineClass = (place) => (place >= 6 ? "line dashed" : "line");

class Chart {
  constructor(settings, shared) {
    this.settings = settings;
    this.shared = shared;
    this.svg = drawn("svg", { tabindex: "0", role: "img", "aria-roledescription": "chart", class: "plot" });
    const listen = (name, act) => this.svg.addEventListener(name, act);
    listen("pointermove", (event) => this.point(event));
    listen("pointerdown", (event) => this.press(event));
    listen("pointerup", (event) => this.release(event));
    listen("pointercancel", () => this.drop());
    listen("pointerleave", () => shared.moveCursor(null));
    listen("dblclick", () => shared.zoomTo(null));
    listen("blur", () => shared.moveCursor(null));
    listen("keydown", (event) => this.key(event));
    this.figure = element(
      "figure",
      { class: "chart" },
      element("figcaption", {},
        element("div", { class: "chart-head" }, element("h3", {}, settings.title), exportButtons(this)),
        element("p", { class: "soft small" }, settings.note)),
      this.svg,
    );
  }

  // The curves that are shown: values, or differences from the base.
  curves() {
    const { runs, base } = this.shared;
    const from = base === null ? null : runs[base].curves[this.settings.metric];
    return runs
      .map((run, place) => ({ place, name: run.name, raw: run.curves[this.settings.metric], shown: run.shown }))
      .filter(({ shown, raw, place }) => shown && raw && (base === null || (from && place !== base)))
      .map((curve) => this.prepared(curve, from))
      .filter((curve) => curve.raw.x.length);
  }

  // The curve within the zoom, raw and smoothed. On a logarithmic axis, its positive values only.
  prepared(curve, from) {
    let raw = from ? difference(curve.raw, from) : curve.raw;
    const [low, high] = this.shared.stepRange();
    const inside = (whole) => (this.shared.zoom ? points(whole, (step) => step >= low && step <= high) : whole);
    const numAll = inside(raw).x.length;
    if (this.isLog) raw = points(raw, (_, value) => value > 0);
    const smooth = smoothed(raw, this.shared.window);
    const shown = inside(raw);
    return { ...curve, raw: shown, smooth: smooth === raw ? shown : inside(smooth), numHidden: numAll - shown.x.length };
  }

  get isDifference() {
    return this.shared.base !== null;
  }

  get isLog() {
    return this.shared.log && !this.isDifference;
  }

  get unit() {
    if (!this.isDifference) return this.settings.unit;
    return `difference in ${this.settings.share ? "points" : this.settings.unit}`;
  }

  format(value) {
    if (!this.isDifference) return this.settings.share ? percent(value) : figure(value);
    return signed(this.settings.share ? `${(100 * value).toFixed(1)} points` : figure(value), value);
  }

  draw() {
    this.width = Math.max(240, this.svg.parentNode.clientWidth - 24);
    this.found = this.curves();
    this.steps = [...new Set(this.found.flatMap((curve) => curve.raw.x))].sort((a, b) => a - b);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    this.svg.setAttribute("aria-label", this.described());
    this.svg.replaceChildren();
    this.cursor = null;
    if (!this.found.length) {
      this.svg.append(drawn("text", { x: this.width / 2, y: HEIGHT / 2, class: "none" }, this.emptyReason()));
      return;
    }
    this.drawAxes();
    for (const curve of this.found) this.drawCurve(curve);
    this.band = drawn("rect", { class: "band", y: MARGIN.top, height: HEIGHT - MARGIN.top - MARGIN.bottom, visibility: "hidden" });
    this.cursor = drawn("g", { class: "cursor" });
    this.svg.append(this.band, this.cursor);
  }

  emptyReason() {
    if (this.isDifference) return "no other visible run shares steps with it";
    return this.isLog ? "no positive values to show" : "no visible run has this metric";
  }

  drawAxes() {
    const values = this.found.flatMap((curve) => curve.raw.y);
    this.range = this.isLog ? logRange(values) : valueRange(values);
    const { values: rows, labels } = this.valueTicks();
    this.left = MARGIN.left + 10 + 7 * Math.max(...labels.map((label) => label.length));
    const right = this.width - MARGIN.right;
    const bottom = HEIGHT - MARGIN.bottom;
    const text = (attributes, content) => this.svg.append(drawn("text", { class: "tick", ...attributes }, content));
    rows.forEach((value, i) => {
      const y = this.y(value);
      this.svg.append(drawn("line", { class: value === 0 ? "grid zero" : "grid", x1: this.left, x2: right, y1: y, y2: y }));
      text({ x: this.left - 6, y: y + 4, "text-anchor": "end" }, labels[i]);
    });
    const columns = ticks(...this.shared.stepRange(), Math.max(3, Math.min(6, this.width / 70)));
    for (const step of columns.values.filter(Number.isInteger)) {
      text({ x: this.x(step), y: bottom + 15, "text-anchor": "middle" }, `${step}`);
    }
    text({ x: (this.left + right) / 2, y: HEIGHT - 6, "text-anchor": "middle", class: "tick axis-label" }, "step");
    const middle = (MARGIN.top + bottom) / 2;
    text({ x: 11, y: middle, "text-anchor": "middle", transform: `rotate(-90 11 ${middle})`, class: "tick axis-label" }, this.unit);
    const numHidden = this.found.reduce((sum, curve) => sum + curve.numHidden, 0);
    const cut = this.range.above ? `${this.range.above} above` : numHidden ? `${numHidden} values of 0 or less` : "";
    if (cut) text({ x: right, y: 10, "text-anchor": "end" }, cut);
  }

  valueTicks() {
    const { low, high } = this.range;
    if (!this.isLog) {
      const { values, step } = ticks(low, high, 4);
      const label = (value) => tickLabel(value, step, this.settings.share);
      return { values, labels: values.map((value) => (this.isDifference ? label(value).replace(" %", "") : label(value))) };
    }
    const values = logTicks(low, high);
    return { values, labels: values.length ? values.map((value) => logLabel(value, this.settings.share)) : [""] };
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
    const [low, high] = this.shared.stepRange();
    return this.left + ((step - low) / (high - low)) * (this.width - this.left - MARGIN.right);
  }

  y(value) {
    const place = this.isLog ? Math.log10 : (v) => v;
    const { low, high } = this.range;
    const part = (place(value) - place(low)) / (place(high) - place(low));
    return Math.max(2, MARGIN.top + (1 - part) * (HEIGHT - MARGIN.top - MARGIN.bottom));
  }

  // The horizontal place of the pointer in the drawing.
  at(event) {
    const box = this.svg.getBoundingClientRect();
    return ((event.clientX - box.left) / box.width) * this.width;
  }

  nearest(x) {
    return this.steps.reduce((a, b) => (Math.abs(this.x(b) - x) < Math.abs(this.x(a) - x) ? b : a));
  }

  // All charts show the step of this chart that is nearest to the pointer. While dragging, the chosen steps are marked.
  point(event) {
    if (!this.found.length) return;
    const x = this.at(event);
    const step = this.nearest(x);
    this.shared.moveCursor(step);
    tooltip.show(event.clientX, event.clientY, ...this.reading(step));
    if (this.start === undefined) return;
    this.band.setAttribute("x", Math.min(x, this.start));
    this.band.setAttribute("width", Math.abs(x - this.start));
    this.band.setAttribute("visibility", Math.abs(x - this.start) > DRAG ? "visible" : "hidden");
  }

  press(event) {
    if (this.found.length && event.button === 0) this.start = this.at(event);
    this.point(event);
  }

  release(event) {
    const [from, to] = [this.start, this.at(event)];
    this.drop();
    if (from === undefined || Math.abs(to - from) <= DRAG) return;
    const [low, high] = [this.nearest(Math.min(from, to)), this.nearest(Math.max(from, to))];
    if (high > low) this.shared.zoomTo([low, high]);
  }

  drop() {
    this.start = undefined;
    this.band?.setAttribute("visibility", "hidden");
  }

  key(event) {
    const zooms = { "+": () => this.zoomBy(0.5), "=": () => this.zoomBy(0.5), "-": () => this.zoomBy(2), 0: () => this.shared.zoomTo(null) };
    if (event.key === "Escape") this.shared.moveCursor(null);
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (Object.hasOwn(zooms, event.key)) {
      event.preventDefault();
      zooms[event.key]();
    } else this.walk(event);
  }

  walk(event) {
    const last = this.steps.length - 1;
    const at = this.steps.indexOf(this.shared.step);
    const next = { ArrowLeft: at < 0 ? last : at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    const step = this.steps[Math.max(0, Math.min(last, next))];
    this.shared.moveCursor(step);
    const box = this.svg.getBoundingClientRect();
    tooltip.show(box.left + (this.x(step) / this.width) * box.width, box.top + 20, ...this.reading(step));
  }

  // Keeps the step under the cursor, or the middle, in view.
  zoomBy(factor) {
    const [low, high] = this.shared.stepRange();
    const centre = this.shared.step ?? (low + high) / 2;
    const half = ((high - low) * factor) / 2;
    this.shared.zoomTo([Math.round(centre - half), Math.round(centre + half)]);
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
    if (step === null) return;
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
    const what = this.isDifference ? `, difference from ${this.shared.runs[this.shared.base].name}` : "";
    return `${this.settings.title}${what}: ${ends.join("; ") || "no values"}`;
  }
}
