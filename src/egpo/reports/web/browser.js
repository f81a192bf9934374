// The response browser: choose a run and a step or an evaluation, filter, search and sort, show one response in full.

const MOST_LISTED = 400;

class ResponseBrowser {
  constructor(place, store) {
    this.store = store;
    this.source = 0;
    this.set = this.sets().length - 1;
    this.wanted = { verdict: "all", reason: "all", text: "", everywhere: false, sort: "order", ascending: false };
    this.at = 0;
    this.sourceChoice = this.choice("Source", (value) => this.openSource(Number(value)));
    this.setChoice = this.choice("Step", (value) => this.open(this.sets().findIndex(({ label }) => label === value)));
    this.verdictChoice = this.choice("Verdict", (value) => this.filter({ verdict: value }));
    this.reasonChoice = this.choice("Reason", (value) => this.filter({ reason: value }));
    this.sortChoice = this.choice("Sort by", (value) => this.filter({ sort: value }));
    this.count = element("p", { class: "soft small", role: "status" });
    this.list = element("div", { class: "response-list", role: "listbox", "aria-label": "Responses", tabindex: "0" });
    this.reader = element("article", { class: "reader", "aria-label": "Selected response" });
    this.beside = element("div", {});
    place.replaceChildren(this.toolbar(), this.searchbar(), this.help(), this.beside,
      element("div", { class: "browser" }, element("div", { class: "list-side" }, this.count, this.list), this.reader));
    document.addEventListener("keydown", (event) => this.key(event));
    addEventListener("hashchange", () => this.follow(location.hash));
    this.offerSources();
    if (!this.follow(location.hash)) this.openSource(0);
  }

  sets() {
    return this.store.sources[this.source].sets;
  }

  choice(label, choose) {
    const select = element("select", { "aria-label": label });
    select.addEventListener("change", () => choose(select.value));
    return select;
  }

  toolbar() {
    const labelled = (label, select) => element("label", {}, label, " ", select);
    const mover = (text, label, by) => button(text, () => this.moveStep(by), { "aria-label": label });
    this.stepper = element("span", { class: "stepper" }, mover("‹", "Earlier step", -1), labelled("Step", this.setChoice), mover("›", "Later step", 1));
    return element("div", { class: "controls" }, labelled("Source", this.sourceChoice), this.stepper,
      labelled("Verdict", this.verdictChoice), labelled("Reason", this.reasonChoice));
  }

  searchbar() {
    this.search = element("input", { type: "search", "aria-label": "Search", placeholder: "text, problem or reason" });
    this.search.addEventListener("input", () => this.filter({ text: this.search.value }));
    const everywhere = element("input", { type: "checkbox" });
    everywhere.addEventListener("change", () => {
      this.wanted.everywhere = everywhere.checked;
      this.open(this.set);
    });
    const direction = button("↓ highest first", () => {
      const ascending = !this.wanted.ascending;
      direction.textContent = ascending ? "↑ lowest first" : "↓ highest first";
      this.filter({ ascending });
    }, { id: "sort-direction" });
    setOptions(this.sortChoice, [["order", "as sampled"], ...Object.keys(SORT_KEYS).map((key) => [key, key])], "order");
    return element("div", { class: "controls", role: "search" },
      element("label", {}, "Search ", this.search),
      element("label", {}, everywhere, " in all steps, runs and evaluations"),
      element("label", {}, "Sort by ", this.sortChoice), direction);
  }

  help() {
    const keys = (...names) => names.map((name) => element("kbd", {}, name));
    return element("p", { class: "soft small help" }, ...keys("j", "k"), " or ", ...keys("↓", "↑"), " in the list: next and previous response; ", ...keys("[", "]"), " earlier and later step; ", ...keys("/"), " search.");
  }

  offerSources() {
    const option = (found, number) => element("option", { value: number }, found.kind === "rollouts" ? found.name : `${found.name} · ${found.sets[0].label}`);
    const groups = [["rollouts", "Training rollouts"], ["evaluation", "Evaluations"]].map(([kind, label]) =>
      element("optgroup", { label }, ...this.store.sources.map((found, i) => (found.kind === kind ? option(found, i) : null))));
    this.sourceChoice.replaceChildren(...groups.filter((group) => group.children.length));
    this.sourceChoice.value = `${this.source}`;
  }

  openSource(number) {
    const label = this.sets()[this.set]?.label;
    this.source = number;
    const same = this.sets().findIndex((set) => set.label === label);
    this.open(same < 0 ? this.sets().length - 1 : same);
  }

  open(set) {
    this.set = set;
    this.sourceChoice.value = `${this.source}`;
    setOptions(this.setChoice, this.sets().map(({ label }) => [label, label]), this.sets()[set].label);
    this.stepper.hidden = this.store.sources[this.source].kind !== "rollouts";
    this.all = this.wanted.everywhere ? this.store.everything() : this.store.entries(this.source, set);
    const verdicts = ["right", "wrong", "check failed"];
    setOptions(this.verdictChoice, withCounts(verdicts, this.all, verdictName), this.wanted.verdict);
    const reasons = [...new Set([...this.all.map(({ response }) => response.reason), this.wanted.reason])].filter((name) => name !== "all").sort();
    setOptions(this.reasonChoice, withCounts(reasons, this.all, (r) => r.reason), this.wanted.reason);
    this.filter({});
  }

  filter(change) {
    Object.assign(this.wanted, change);
    const { verdict, reason, text, sort, ascending } = this.wanted;
    const matches = matcher(text);
    const found = this.all.filter((entry) =>
      (verdict === "all" || verdictName(entry.response) === verdict) && (reason === "all" || entry.response.reason === reason) && matches(entry));
    this.matching = found.length;
    this.shown = sortEntries(found, sort, ascending).slice(0, MOST_LISTED);
    this.drawList();
    this.choose(0, false);
  }

  // Goes to the response that an address names. Returns whether there is one.
  follow(address) {
    const entry = this.store.find(address);
    if (entry) {
      this.show(entry);
      byId("responses").scrollIntoView();
    }
    return entry !== null;
  }

  // Opens the set of a response without filters, and selects it there.
  show({ source, set, group, response }) {
    this.source = source;
    Object.assign(this.wanted, { verdict: "all", reason: "all", text: "", sort: "order" });
    this.search.value = "";
    this.sortChoice.value = "order";
    this.open(set);
    const same = (entry) => entry.source === source && entry.set === set && entry.group.problem === group.problem && entry.response.sample === response.sample;
    this.choose(Math.max(0, this.shown.findIndex(same)), false);
  }

  drawList() {
    this.count.textContent = this.counted();
    const grouped = this.wanted.sort === "order";
    this.options = this.shown.map((entry, i) => this.option(entry, i, grouped));
    const parts = [];
    this.shown.forEach((entry, i) => {
      if (grouped && (!i || this.shown[i - 1].group !== entry.group)) parts.push(groupHead(entry, this.wanted.everywhere ? this.store : null));
      parts.push(this.options[i]);
    });
    this.list.replaceChildren(...parts);
  }

  counted() {
    const parts = [`${this.matching} of ${this.all.length} responses.`];
    if (this.matching > this.shown.length) parts.push(`The first ${this.shown.length} are listed.`);
    if (this.wanted.everywhere) return parts.join(" ");
    const source = this.store.sources[this.source];
    const set = this.sets()[this.set];
    if (set.groups < set.of) parts.push(`${set.of - set.groups} of the ${set.of} problems are not included in this page.`);
    if (this.store.groups(this.source, this.set).some((group) => group.responses.length < group.of)) parts.push("Some responses of groups that are too large are not included.");
    if (source.sets.length < source.of) parts.push(`${source.of - source.sets.length} of the run's ${source.of} recorded steps are not included.`);
    return parts.join(" ");
  }

  option(entry, number, grouped) {
    const { response, group } = entry;
    const sorted = SORT_KEYS[this.wanted.sort]?.(response);
    const last = grouped || this.wanted.sort === "length" ? (response.tokens ?? "") : figure(sorted);
    return element(
      "div",
      { class: "option", role: "option", id: `response-${number}`, "aria-selected": "false", onclick: () => this.choose(number) },
      element("span", { class: `mark ${verdictClass(response)}`, "aria-label": verdictName(response) }, verdictMark(response)),
      element("span", { class: "option-score number" }, figure(response.score)),
      element("span", { class: "option-reason" }, grouped ? response.reason : group.problem),
      element("span", { class: "soft number" }, response.finished ? `${last}` : `${last} ✂`),
    );
  }

  choose(number, byUser = true) {
    tooltip.hide();
    if (!this.shown.length) {
      this.list.removeAttribute("aria-activedescendant");
      this.reader.replaceChildren(element("p", { class: "empty" }, "No responses match the filters."));
      return;
    }
    this.options[this.at]?.setAttribute("aria-selected", "false");
    this.at = Math.max(0, Math.min(this.shown.length - 1, number));
    const option = this.options[this.at];
    option.setAttribute("aria-selected", "true");
    this.list.setAttribute("aria-activedescendant", option.id);
    scrollWithin(this.list, option);
    const entry = this.shown[this.at];
    this.reader.replaceChildren(...readResponse(entry, this.store, () => this.compare(entry.group.problem)));
    // Not pushed: the back button leaves the page, and does not go through every response.
    if (byUser) history.replaceState(null, "", this.store.address(entry));
  }

  compare(problem) {
    const close = () => this.beside.replaceChildren();
    this.beside.replaceChildren(sideBySide(problem, this.store, (entry) => this.show(entry), close));
    this.beside.scrollIntoView({ block: "start" });
  }

  moveStep(by) {
    const next = this.set + by;
    if (next >= 0 && next < this.sets().length) this.open(next);
  }

  key(event) {
    const modified = event.ctrlKey || event.altKey;
    const isBracket = event.key === "[" || event.key === "]"; // many keyboards type them with AltGr or Option
    if (event.metaKey || (modified && !isBracket) || event.target.closest("select, input, textarea")) return;
    const inList = event.target === this.list;
    const moves = {
      j: () => this.choose(this.at + 1),
      k: () => this.choose(this.at - 1),
      "/": () => this.search.focus(),
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

  // Newer responses: the selected one stays selected if it is still in the page.
  update(store) {
    const kept = this.shown[this.at] && this.store.address(this.shown[this.at]);
    this.store = store;
    this.source = Math.min(this.source, store.sources.length - 1);
    this.set = Math.min(this.set, this.sets().length - 1);
    this.offerSources();
    const entry = kept && store.find(kept);
    if (entry) Object.assign(this, { source: entry.source, set: entry.set });
    this.open(this.set);
    if (kept) this.choose(Math.max(0, this.shown.findIndex((one) => store.address(one) === kept)), false);
  }
}

function groupHead(entry, store) {
  const { group } = entry;
  const right = group.responses.filter((response) => response.correct).length;
  const scores = new Set(group.responses.map((response) => response.score));
  const agree = scores.size === 1 && group.responses.length > 1 ? ", all rewards equal" : "";
  const where = store ? `${store.title(entry)} · ` : "";
  return element("div", { class: "group-head", role: "presentation" }, element("b", {}, `${where}${group.problem}`), element("span", { class: "soft" }, `${right} of ${group.responses.length} right${agree}`));
}

function withCounts(names, all, nameOf) {
  const counts = new Map();
  for (const { response } of all) counts.set(nameOf(response), (counts.get(nameOf(response)) ?? 0) + 1);
  return [["all", `all (${all.length})`], ...names.map((name) => [name, `${name} (${counts.get(name) ?? 0})`])];
}

// Like scrollIntoView, but scrolls only the list, never the page.
function scrollWithin(list, option) {
  const above = option.offsetTop;
  if (above < list.scrollTop) list.scrollTop = above - 30;
  else if (above + option.offsetHeight > list.scrollTop + list.clientHeight) list.scrollTop = above + option.offsetHeight - list.clientHeight;
}

function startBrowser() {
  const place = byId("response-browser");
  return place ? new ResponseBrowser(place, new ResponseStore(readJson("response-index"))) : null;
}
