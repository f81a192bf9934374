// The responses in the page: sources (runs and evaluations) with sets (steps), each parsed when it is first needed.
// An entry is one response with its group, set and source.

class ResponseStore {
  constructor(index) {
    this.index = index;
    this.sources = index.sources;
    this.parsed = new Map();
  }

  // The groups of a set, as they were recorded.
  groups(source, set) {
    const id = `responses-${source}-${set}`;
    if (!this.parsed.has(id)) this.parsed.set(id, readJson(id));
    return this.parsed.get(id);
  }

  entries(source, set) {
    return this.groups(source, set).flatMap((group) => group.responses.map((response) => ({ source, set, group, response })));
  }

  everything() {
    return this.sources.flatMap((found, source) => found.sets.flatMap((_, set) => this.entries(source, set)));
  }

  // The group of this problem in each set that has it: one entry for each response.
  ofProblem(problem) {
    return this.sources.flatMap((found, source) => found.sets.flatMap((_, set) => {
      const group = this.groups(source, set).find((one) => one.problem === problem);
      return group ? [{ source, set, group }] : [];
    }));
  }

  title({ source, set }) {
    const found = this.sources[source];
    return found.kind === "rollouts" ? `${found.name} · step ${found.sets[set].label}` : `${found.name} · ${found.sets[set].label}`;
  }

  // The part of the address that names a response. It stays valid when the page is written again.
  address({ source, set, group, response }) {
    const found = this.sources[source];
    const parts = { response: found.kind, of: found.name, at: found.sets[set].label, problem: group.problem, sample: response.sample };
    return `#${new URLSearchParams(parts)}`;
  }

  // The entry that an address names; null if it names none, or one that is not in this page.
  find(address) {
    const wanted = new URLSearchParams(address.replace(/^#/, ""));
    if (!wanted.has("response")) return null;
    for (const [source, found] of this.sources.entries()) {
      if (found.kind !== wanted.get("response") || found.name !== wanted.get("of")) continue;
      const set = found.sets.findIndex(({ label }) => label === wanted.get("at"));
      const same = ({ group, response }) => group.problem === wanted.get("problem") && `${response.sample}` === wanted.get("sample");
      const entry = set < 0 ? undefined : this.entries(source, set).find(same);
      if (entry) return entry;
    }
    return null;
  }
}

const verdictName = (response) => (response.failed ? "check failed" : response.correct ? "right" : "wrong");
const verdictMark = (response) => (response.failed ? "!" : response.correct ? "✓" : "✗");
const verdictClass = (response) => (response.failed ? "failed" : response.correct ? "right" : "wrong");

// Mean entropy of the response in nats; null if it was not recorded.
function meanEntropy(response) {
  if (response.segments.response !== undefined) return response.segments.response;
  const known = (response.entropies ?? []).filter((entropy) => entropy >= 0);
  return known.length ? known.reduce((a, b) => a + b) / known.length / 100 : null;
}

const SORT_KEYS = {
  entropy: meanEntropy,
  advantage: (response) => response.advantage ?? null,
  length: (response) => response.tokens ?? null,
  reward: (response) => response.score,
};

// Descending, or ascending; responses without the value come last. Equal values keep their order.
function sortEntries(entries, key, ascending) {
  if (!Object.hasOwn(SORT_KEYS, key)) return entries;
  const sign = ascending ? 1 : -1;
  const valued = entries.map((entry) => ({ entry, value: SORT_KEYS[key](entry.response) }));
  valued.sort((a, b) => (a.value === null || b.value === null ? (a.value === null) - (b.value === null) : sign * (a.value - b.value)));
  return valued.map(({ entry }) => entry);
}

// Whether the text occurs in the response, the prompt, the problem's name, the ground truth or the reason; of an episode,
// also in its calls, results and messages.
function matcher(text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return () => true;
  const has = (value) => `${value}`.toLowerCase().includes(wanted);
  return ({ group, response }) =>
    [response.text, group.prompt, group.problem, group.truth, response.reason].some(has) || episodeTexts(response).some(has);
}
