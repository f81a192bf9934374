// All charts share which runs are shown, the smoothing, and the step under the pointer.

const NOISY = 60; // steps; longer curves are smoothed by default

function startCharts() {
  if (!byId("charts")) return;
  const data = readJson("chart-data");
  const shared = {
    runs: data.runs.map((run) => ({ ...run, shown: true })),
    window: lastStep(data.runs) > NOISY ? 10 : 0,
    step: null,
    stepRange: stepRange(data.runs),
    moveCursor(step) {
      shared.step = step;
      if (step === null) tooltip.hide();
      for (const chart of charts) chart.showCursor(step);
    },
  };
  const charts = data.charts.map((settings) => new Chart(settings, shared));
  const drawAll = () => charts.forEach((chart) => chart.draw());

  byId("charts").append(...charts.map((chart) => chart.figure));
  byId("legend").append(...shared.runs.map((run, place) => legendButton(run, place, drawAll)));
  byId("smoothing").value = `${shared.window}`;
  byId("smoothing").addEventListener("change", (event) => {
    shared.window = Number(event.target.value);
    drawAll();
  });
  offerOtherMetrics(charts, shared);
  drawAll();

  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width) drawAll(); // a phone's address bar changes the height alone
    width = innerWidth;
  });
}

const endsOf = (runs) => runs.flatMap((run) => Object.values(run.curves).flatMap(({ x }) => [x[0], x[x.length - 1]]));
const lastStep = (runs) => Math.max(...endsOf(runs));

function stepRange(runs) {
  const low = Math.min(...endsOf(runs));
  const high = lastStep(runs);
  return low === high ? [low - 1, high + 1] : [low, high];
}

// A short piece of the run's line for the legend, dashed if the curve is.
const lineSample = (place) =>
  drawn("svg", { width: 22, height: 8, class: "sample", "aria-hidden": "true" },
    drawn("g", { class: `curve run-${place % 6}` }, drawn("path", { class: lineClass(place), d: "M0 4H22" })));

function legendButton(run, place, drawAll) {
  const button = element("button", { type: "button", "aria-pressed": "true" }, lineSample(place), run.name);
  button.addEventListener("click", () => {
    run.shown = !run.shown;
    button.setAttribute("aria-pressed", String(run.shown));
    drawAll();
  });
  return button;
}

function offerOtherMetrics(charts, shared) {
  const choice = byId("other-metric");
  if (!choice) return;
  let chart = null;
  const redraw = () => {
    if (chart) charts.splice(charts.indexOf(chart), 1);
    chart = new Chart({ title: choice.value, metric: choice.value, note: "as recorded", share: false }, shared);
    charts.push(chart);
    byId("other-chart").replaceChildren(chart.figure);
    chart.draw();
  };
  choice.addEventListener("change", redraw);
  choice.closest("details").addEventListener("toggle", redraw);
}
