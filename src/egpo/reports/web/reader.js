// One response in full: verdict, prompt, ground truth, text.

const verdictName = (response) => (response.failed ? "check failed" : response.correct ? "right" : "wrong");
const verdictMark = (response) => (response.failed ? "!" : response.correct ? "✓" : "✗");
const verdictClass = (response) => (response.failed ? "failed" : response.correct ? "right" : "wrong");

function facts(response) {
  const pairs = [
    ["score", figure(response.score)],
    ["advantage", figure(response.advantage)],
    ["reason", response.reason],
    ["tokens", response.tokens || null],
    ["end", response.finished ? "stopped" : "cut off"],
    ...Object.entries(response.segments).map(([name, entropy]) => [`entropy, ${name}`, `${entropy.toFixed(3)} nats`]),
  ].filter(([, value]) => value !== null && value !== "");
  return element("dl", { class: "verdict" }, ...pairs.map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, `${value}`))));
}

function readResponse({ group, response }, scale) {
  const title = element("h3", {}, `${group.problem} · sample ${response.sample + 1}`);
  const badge = element("span", { class: `badge ${verdictClass(response)}` }, `${verdictMark(response)} ${verdictName(response)}`);
  const tokens = tokensOf(response);
  const text = element("div", { class: "response", "aria-label": "Response" }, ...responseBlocks(response, scale));
  const describe = (event) => {
    const token = event.target.closest("[data-token]");
    if (token) tooltip.show(event.clientX, event.clientY, ...describeToken(tokens, Number(token.dataset.token)));
    else tooltip.hide();
  };
  text.addEventListener("pointermove", describe);
  text.addEventListener("click", describe);
  text.addEventListener("pointerleave", () => tooltip.hide());
  return [
    element("div", { class: "reader-head" }, title, badge),
    facts(response),
    element("details", { open: true }, element("summary", {}, "Prompt"), element("div", { class: "text prompt" }, visible(group.prompt))),
    element("details", {}, element("summary", {}, "Ground truth"), element("div", { class: "text prompt" }, visible(group.truth))),
    element("div", { class: "response-head" }, element("h4", {}, "Response"), tokens.length ? entropyScale(scale) : null),
    text,
  ];
}
