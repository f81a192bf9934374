// The rollout browser: choose a run and a step, list its responses, show one in full.

class RolloutBrowser {
  constructor(index, place) {
    this.index = index;
    this.run = index.runs[0];
    this.step = this.run.steps[this.run.steps.length - 1].step;
    this.wanted = { verdict: "all", reason: "all" };
    this.at = 0;
    this.runChoice = this.choice("Run", (value) => this.openRun(Number(value)));
    this.stepChoice = this.choice("Step", (value) => this.open(Number(value)));
    this.verdictChoice = this.choice("Verdict", (value) => this.filter({ verdict: value }));
    this.reasonChoice = this.choice("Reason", (value) => this.filter({ reason: value }));
    this.count = element("p", { class: "soft small", role: "status" });
    this.list = element("div", { class: "response-list", role: "listbox", "aria-label": "Responses", tabindex: "0" });
    this.reader = element("article", { class: "reader", "aria-label": "Selected response" });
    place.append(this.toolbar(), this.help(), element("div", { class: "browser" }, element("div", { class: "list-side" }, this.count, this.list), this.reader));
    setOptions(this.runChoice, index.runs.map((run, i) => [i, run.name]), 0);
    document.addEventListener("keydown", (event) => this.key(event));
    this.openRun(0);
  }

  choice(label, choose) {
    const select = element("select", { "aria-label": label });
    select.addEventListener("change", () => choose(select.value));
    return select;
  }

  toolbar() {
    const labelled = (label, select) => element("label", {}, label, " ", select);
    const button = (text, label, by) =>
      element("button", { type: "button", "aria-label": label, onclick: () => this.moveStep(by) }, text);
    return element(
      "div",
      { class: "controls" },
      labelled("Run", this.runChoice),
      element("span", { class: "stepper" }, button("‹", "Earlier step", -1), labelled("Step", this.stepChoice), button("›", "Later step", 1)),
      labelled("Verdict", this.verdictChoice),
      labelled("Reason", this.reasonChoice),
    );
  }

  help() {
    const keys = (...names) => names.map((name) => element("kbd", {}, name));
    return element("p", { class: "soft small help" }, ...keys("j", "k"), " or ", ...keys("↓", "↑"), " in the list: next and previous response; ", ...keys("[", "]"), " earlier and later step.");
  }

  openRun(number) {
    this.run = this.index.runs[number];
    setOptions(this.stepChoice, this.run.steps.map(({ step }) => [step, `${step}`]), this.step);
    const known = this.run.steps.some(({ step }) => step === this.step);
    this.open(known ? this.step : this.run.steps[this.run.steps.length - 1].step);
  }

  open(step) {
    this.step = step;
    this.stepChoice.value = `${step}`;
    this.groups = readJson(`rollouts-${this.run.place}-${step}`);
    this.all = this.groups.flatMap((group) => group.responses.map((response) => ({ group, response })));
    const verdicts = [["all", "all"], ...["right", "wrong", "check failed"].map((name) => [name, name])];
    setOptions(this.verdictChoice, withCounts(verdicts, this.all, verdictName), this.wanted.verdict);
    const reasons = [...new Set([...this.all.map(({ response }) => response.reason), this.wanted.reason])].filter((name) => name !== "all").sort();
    setOptions(this.reasonChoice, withCounts([["all", "all"], ...reasons.map((name) => [name, name])], this.all, (r) => r.reason), this.wanted.reason);
    this.filter({});
  }

  filter(change) {
    Object.assign(this.wanted, change);
    const { verdict, reason } = this.wanted;
    this.shown = this.all.filter(({ response }) =>
      (verdict === "all" || verdictName(response) === verdict) && (reason === "all" || response.reason === reason));
    this.drawList();
    this.choose(0);
  }

  drawList() {
    this.count.textContent = this.counted();
    this.options = this.shown.map(({ response }, i) => this.option(response, i));
    const parts = [];
    this.shown.forEach(({ group }, i) => {
      if (!i || this.shown[i - 1].group !== group) parts.push(groupHead(group));
      parts.push(this.options[i]);
    });
    this.list.replaceChildren(...parts);
  }

  counted() {
    const step = this.run.steps.find((entry) => entry.step === this.step);
    const parts = [`${this.shown.length} of ${this.all.length} responses.`];
    if (step.groups < step.of) parts.push(`${step.of - step.groups} of the step's ${step.of} groups are not included in this page.`);
    const cut = this.groups.filter((group) => group.responses.length < group.of);
    if (cut.length) parts.push("Some responses of groups that are too large are not included.");
    if (this.run.steps.length < this.run.of) parts.push(`${this.run.of - this.run.steps.length} of the run's ${this.run.of} recorded steps are not included.`);
    return parts.join(" ");
  }

  option(response, number) {
    return element(
      "div",
      { class: "option", role: "option", id: `response-${number}`, "aria-selected": "false", onclick: () => this.choose(number) },
      element("span", { class: `mark ${verdictClass(response)}`, "aria-label": verdictName(response) }, verdictMark(response)),
      element("span", { class: "option-score number" }, figure(response.score)),
      element("span", { class: "option-reason" }, response.reason),
      element("span", { class: "soft number" }, response.finished ? `${response.tokens}` : `${response.tokens} ✂`),
    );
  }

  choose(number) {
    tooltip.hide();
    if (!this.shown.length) {
      this.list.removeAttribute("aria-activedescendant");
      this.reader.replaceChildren(element("p", { class: "empty" }, "No responses of this step match the filters."));
      return;
    }
    this.options[this.at]?.setAttribute("aria-selected", "false");
    this.at = Math.max(0, Math.min(this.shown.length - 1, number));
    const option = this.options[this.at];
    option.setAttribute("aria-selected", "true");
    this.list.setAttribute("aria-activedescendant", option.id);
    scrollWithin(this.list, option);
    this.reader.replaceChildren(...readResponse(this.shown[this.at], this.index.scale));
  }

  moveStep(by) {
    const steps = this.run.steps.map(({ step }) => step);
    const at = steps.indexOf(this.step) + by;
    if (at >= 0 && at < steps.length) this.open(steps[at]);
  }

  key(event) {
    const modified = event.ctrlKey || event.altKey;
    const isBracket = event.key === "[" || event.key === "]"; // many keyboards type them with AltGr or Option
    if (event.metaKey || (modified && !isBracket) || event.target.closest("select, input, textarea")) return;
    const inList = event.target === this.list;
    const moves = {
      j: () => this.choose(this.at + 1),
      k: () => this.choose(this.at - 1),
      "[": () => this.moveStep(-1),
      "]": () => this.moveStep(1),
      ...(inList && {
        ArrowDown: () => this.choose(this.at + 1),
        ArrowUp: () => this.choose(this.at - 1),
        Home: () => this.choose(0),
        End: () => this.choose(this.shown.length - 1),
      }),
    };
    if (!Object.hasOwn(moves, event.key)) return;
    event.preventDefault();
    moves[event.key]();
  }
}

function groupHead(group) {
  const right = group.responses.filter((response) => response.correct).length;
  const scores = new Set(group.responses.map((response) => response.score));
  const agree = scores.size === 1 ? ", all scores equal" : "";
  return element("div", { class: "group-head", role: "presentation" }, element("b", {}, group.problem), element("span", { class: "soft" }, `${right} of ${group.responses.length} right${agree}`));
}

function withCounts(options, all, nameOf) {
  return options.map(([value, name]) => {
    const count = value === "all" ? all.length : all.filter(({ response }) => nameOf(response) === value).length;
    return [value, `${name} (${count})`];
  });
}

function setOptions(select, options, chosen) {
  select.replaceChildren(...options.map(([value, name]) => element("option", { value }, name)));
  select.value = `${chosen}`;
}

// Like scrollIntoView, but scrolls only the list, never the page.
function scrollWithin(list, option) {
  const above = option.offsetTop - list.offsetTop;
  if (above < list.scrollTop) list.scrollTop = above - 30;
  else if (above + option.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = above + option.offsetHeight - list.clientHeight;
}

function startRollouts() {
  const place = byId("rollout-browser");
  if (place) new RolloutBrowser(readJson("rollout-index"), place);
}
