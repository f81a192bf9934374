// One response in full: verdict, prompt, ground truth, text.

const TOKEN_HELP = "Point at a token, or press Tab to reach the text: ← and → read tokens, ↓ and ↑ those of high entropy.";
const ALTERNATIVES_HELP = " A dotted line marks tokens for which the likeliest tokens were recorded.";

function facts(response) {
  const pairs = [
    ["reward", figure(response.score)],
    ["advantage", response.advantage === undefined ? null : figure(response.advantage)],
    ["reason", response.reason],
    ["tokens", response.tokens || null],
    ["end", response.turns ? null : response.finished ? "stopped" : "cut off"],
    ...episodeFacts(response),
    ...Object.entries(response.segments).map(([name, entropy]) => [`entropy, ${name}`, `${entropy.toFixed(3)} nats`]),
  ].filter(([, value]) => value !== null && value !== "");
  return element("dl", { class: "verdict" }, ...pairs.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, `${value}`))));
}

const badge = (response) =>
  element("span", { class: `badge ${verdictClass(response)}` }, `${verdictMark(response)} ${verdictName(response)}`);

// The text of a response, token by token where tokens are known.
function responseText(response, scale) {
  const tokens = tokensOf(response);
  const text = element(
    "div",
    { class: "response", role: "group", tabindex: tokens.length ? "0" : null, "aria-label": tokens.length ? "Response: arrow keys read its tokens" : "Response" },
    ...(response.turns ? episodeBlocks(response, tokens, scale) : responseBlocks(response, tokens, scale)),
  );
  readTokens(text, tokens, scale);
  return text;
}

function readResponse(entry, store, compare) {
  const { group, response } = entry;
  const scale = store.index.scale;
  const hasTokens = (response.lengths ?? []).length > 0;
  return [
    element("div", { class: "reader-head" }, element("h3", {}, `${group.problem} · sample ${response.sample + 1}`), badge(response)),
    element("p", { class: "soft small" }, swatch(store.sources[entry.source].place), store.title(entry)),
    facts(response),
    element("div", { class: "controls" },
      button("This problem in all steps and runs", compare),
      element("a", { class: "permalink", href: store.address(entry) }, "Link to this response")),
    element("details", { open: true }, element("summary", {}, "Prompt"), element("div", { class: "text prompt" }, visible(group.prompt))),
    element("details", {}, element("summary", {}, "Ground truth"), element("div", { class: "text prompt" }, visible(group.truth))),
    element("div", { class: "response-head" }, element("h4", {}, response.turns ? "Episode" : "Response"), hasTokens ? entropyScale(scale) : null),
    responseText(response, scale),
    hasTokens ? element("p", { class: "soft small help" }, TOKEN_HELP + (response.alternatives.length ? ALTERNATIVES_HELP : "")) : null,
  ].filter((part) => part !== null);
}
