// Draws an episode turn by turn: the assistant's text, its calls with their results, what the user said, changes of state.

// The texts of the turns, in order: the response's text has them joined.
function turnTexts(response) {
  let start = 0;
  return response.turns.map(({ length }) => response.text.slice(start, (start += length)));
}

function episodeBlocks(response, tokens, scale) {
  const texts = turnTexts(response);
  return response.turns.map((turn, i) =>
    element("section", { class: "turn", "aria-label": `Turn ${i + 1}` },
      element("h5", { class: "turn-name" }, `Turn ${i + 1}`, ...turnNotes(turn).map((note) => element("span", { class: "soft" }, note))),
      ...turnText(response, turn, texts[i], tokens, scale),
      ...(turn.calls ?? []).map(callBlock),
      ...(turn.messages ?? []).map(([role, content]) => block(role === "tool" ? "answer of the environment" : role, `said ${role === "user" ? "by-user" : "by-tool"}`, content)),
      turn.changes ? changesTable(turn.changes) : null,
    ));
}

function turnNotes(turn) {
  const entropies = Object.entries(turn.entropy ?? {}).map(([name, mean]) => `entropy, ${name} ${mean.toFixed(2)} nats`);
  return [...(turn.tokens ? [`${turn.tokens[1] - turn.tokens[0]} tokens`] : []), ...entropies, ...(turn.cut ? ["cut off"] : []), ...(turn.fault ? [turn.fault] : [])];
}

function turnText(response, turn, text, tokens, scale) {
  if (!tokens.length || !turn.tokens) return [element("div", { class: "segment" }, element("div", { class: "text" }, visible(text)))];
  const means = turn.entropy ?? {};
  return segmentBlocks(segmentsOf(response, ...turn.tokens), means, tokens, scale);
}

function callBlock([name, given, result, fault]) {
  return element("div", { class: `call${fault ? " with-fault" : ""}` },
    element("div", { class: "text" }, element("b", {}, visible(name)), " ", element("code", {}, visible(given)), fault ? element("span", { class: "fault" }, ` ${fault}`) : null),
    element("div", { class: "text result" }, "→ ", visible(result)));
}

const block = (name, kind, content) =>
  element("div", { class: kind }, element("p", { class: "segment-name" }, name), element("div", { class: "text" }, visible(content)));

function changesTable(changes) {
  return element("details", { class: "changes", open: changes.length <= 8 }, element("summary", {}, `State: ${changes.length} ${changes.length === 1 ? "change" : "changes"}`),
    element("div", {}, ...changes.map(([path, before, after]) =>
      element("div", { class: "text change" }, element("code", {}, visible(path)), ": ", element("del", {}, visible(before)), " → ", element("ins", {}, visible(after))))));
}

// Facts about an episode for the head of a response.
function episodeFacts(response) {
  if (!response.turns) return [];
  const calls = response.turns.reduce((sum, turn) => sum + (turn.calls ?? []).length, 0);
  const faults = Object.entries(response.faults).map(([name, count]) => `${name} ${count}`).join(", ");
  return [["turns", response.turns.length], ["calls", `${calls}`], ["ending", response.ending], ["faults", faults], ["environment failed", response.fault]];
}

// All that can be searched in an episode besides its text.
const episodeTexts = (response) =>
  (response.turns ?? []).flatMap((turn) => [...(turn.calls ?? []), ...(turn.messages ?? []), ...(turn.changes ?? [])]).flat();
