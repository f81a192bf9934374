// All charts share which runs are shown, smoothing, axis, difference, zoom, and the step under the pointer.

const NOISY = 60; // steps; longer curves are smoothed by default

class ChartSet {
  constructor(data) {
    this.data = data;
    this.runs = data.runs.map((run) => ({ ...run, shown: true }));
    this.window = lastStep(data.runs) > NOISY ? 10 : 0;
    this.log = false;
    this.base = null; // the run from which differences are shown
    this.whole = wholeRange(this.runs);
    this.zoom = null;
    this.step = null;
    this.charts = data.charts.map((settings) => new Chart(settings, this));
    byId("charts").replaceChildren(...this.charts.map((chart) => chart.figure));
    byId("legend").replaceChildren(...this.runs.map((run, place) => this.legendButton(run, place)));
    this.connectControls();
    this.offerOtherMetrics();
    this.draw();
    let width = innerWidth;
    addEventListener("resize", () => {
      if (innerWidth !== width) this.draw(); // a phone's address bar changes the height alone
      width = innerWidth;
    });
  }

  draw() {
    for (const chart of this.charts) chart.draw();
  }

  // Newer data of the same runs: the controls keep their state.
  update(data) {
    data.runs.forEach((run, place) => Object.assign(this.runs[place], { curves: run.curves }));
    const known = new Set(this.charts.map((chart) => chart.settings.metric));
    const added = data.charts.filter(({ metric }) => !known.has(metric)).map((settings) => new Chart(settings, this));
    this.charts.push(...added);
    byId("charts").append(...added.map((chart) => chart.figure));
    this.data = data;
    this.whole = wholeRange(this.runs);
    this.draw();
  }

  moveCursor(step) {
    this.step = step;
    if (step === null) tooltip.hide();
    for (const chart of this.charts) chart.showCursor(step);
  }

  stepRange() {
    return this.zoom ?? this.whole;
  }

  // Shows these steps only; all of them for null. At least two steps stay in view.
  zoomTo(range) {
    const [low, high] = this.whole;
    const inside = range && [Math.max(low, range[0]), Math.min(high, range[1])];
    this.zoom = !inside || (inside[0] <= low && inside[1] >= high) ? null : [inside[0], Math.max(inside[1], inside[0] + 1)];
    byId("reset-zoom").hidden = this.zoom === null;
    this.draw();
  }

  connectControls() {
    const onChange = (id, act) => byId(id)?.addEventListener("change", (event) => {
      act(event.target.value);
      this.draw();
    });
    byId("smoothing").value = `${this.window}`;
    onChange("smoothing", (value) => (this.window = Number(value)));
    onChange("axis", (value) => (this.log = value === "log"));
    onChange("difference", (value) => {
      this.base = value === "" ? null : Number(value);
      byId("axis").disabled = this.base !== null; // differences may be negative
    });
    byId("reset-zoom").addEventListener("click", () => this.zoomTo(null));
    byId("export-all").addEventListener("click", () => download("metrics.csv", allCsv(this.runs)));
  }

  legendButton(run, place) {
    const toggle = button(null, () => {
      run.shown = !run.shown;
      toggle.setAttribute("aria-pressed", String(run.shown));
      this.draw();
    }, { "aria-pressed": "true" });
    toggle.append(lineSample(place), run.name);
    return toggle;
  }

  offerOtherMetrics() {
    const choice = byId("other-metric");
    if (!choice) return;
    let chart = null;
    const redraw = () => {
      if (chart) this.charts.splice(this.charts.indexOf(chart), 1);
      chart = new Chart(this.data.others.find(({ metric }) => metric === choice.value), this);
      this.charts.push(chart);
      byId("other-chart").replaceChildren(chart.figure);
      chart.draw();
    };
    choice.addEventListener("change", redraw);
    choice.closest("details").addEventListener("toggle", redraw);
  }
}

const endsOf = (runs) => runs.flatMap((run) => Object.values(run.curves).flatMap(({ x }) => [x[0], x[x.length - 1]]));
const lastStep = (runs) => Math.max(...endsOf(runs));

function wholeRange(runs) {
  const low = Math.min(...endsOf(runs));
  const high = lastStep(runs);
  return low === high ? [low - 1, high + 1] : [low, high];
}

// A short piece of the run's line for the legend, dashed if the curve is.
const lineSample = (place) =>
  drawn("svg", { width: 22, height: 8, class: "sample", "aria-hidden": "true" },
    drawn("g", { class: `curve run-${place % 6}` }, drawn("path", { class: lineClass(place), d: "M0 4H22" })));

const startCharts = () => (byId("charts") ? new ChartSet(readJson("chart-data")) : null);
