// One problem in all steps, runs and evaluations that have it, side by side.

const MOST_COLUMNS = 24;

function sideBySide(problem, store, open, close) {
  const exam = ({ source, set }) => (store.sources[source].kind === "rollouts" ? "" : store.sources[source].sets[set].label);
  const found = store.ofProblem(problem).sort((a, b) => exam(a).localeCompare(exam(b))); // the models of an exam together
  const shown = found.slice(0, MOST_COLUMNS);
  const more = found.length > shown.length ? ` The first ${shown.length} of ${found.length} are shown.` : "";
  return element(
    "section",
    { class: "beside", "aria-label": "The same problem side by side" },
    element("div", { class: "reader-head" }, element("h3", {}, `${problem}, side by side`), button("Close", close)),
    element("p", { class: "soft small" }, `In ${found.length} ${found.length === 1 ? "step or evaluation" : "steps and evaluations"} of this page.${more}`),
    element("div", { class: "beside-columns", tabindex: "0", role: "region", "aria-label": "Columns: one for each step or evaluation" },
      ...shown.map((one) => column(one, store, open))),
  );
}

// One set: how often the problem was solved in it, and its responses, one at a time.
function column(one, store, open) {
  const { responses, of } = one.group;
  const right = responses.filter((response) => response.correct).length;
  const mean = responses.reduce((sum, response) => sum + (response.score ?? 0), 0) / responses.length;
  const body = element("div", {});
  const many = responses.length > 1;
  let at = 0;
  const show = (number) => {
    at = (number + responses.length) % responses.length;
    const response = responses[at];
    body.replaceChildren(
      element("div", { class: "reader-head" },
        element("span", { class: "stepper" },
          many ? button("‹", () => show(at - 1), { "aria-label": "Previous sample" }) : null,
          `sample ${response.sample + 1} of ${of}`,
          many ? button("›", () => show(at + 1), { "aria-label": "Next sample" }) : null),
        badge(response)),
      element("p", { class: "soft small" }, `reward ${figure(response.score)}, ${response.tokens ?? "unknown"} tokens`),
      responseText(response, store.index.scale),
      button("Open", () => open({ ...one, response })),
    );
  };
  show(0);
  return element("article", { class: "beside-column" },
    element("h4", {}, swatch(store.sources[one.source].place), store.title(one)),
    element("p", { class: "soft small" }, `${right} of ${responses.length} right, mean reward ${figure(mean)}`),
    body);
}
