// Draws a response token by token: shaded by entropy, divided into its segments; reads one token by pointer or key.

const SHADES = 12;

// The tokens in order: text, entropy in nats or null, likeliest tokens with their probabilities if they were recorded, and which of
// those was sampled.
function tokensOf(response) {
  let start = 0;
  const alternatives = new Map((response.alternatives ?? []).map(([token, sampled, flat]) => [token, { sampled, likeliest: pairs(flat) }]));
  return (response.lengths ?? []).map((length, i) => {
    const text = response.text.slice(start, (start += length));
    const hundredths = response.entropies.length ? response.entropies[i] : -1;
    return { text, entropy: hundredths < 0 ? null : hundredths / 100, ...alternatives.get(i) };
  });
}

// [text, tenths of a percent, text, ...] as [[text, probability], ...].
const pairs = (flat) => flat.flatMap((text, i) => (i % 2 ? [] : [[text, flat[i + 1] / 1000]]));

// Ranges of the tokens from `from` to `to` by segment; `null` for tokens outside of all segments, such as tags.
function segmentsOf(response, from, to) {
  const found = [];
  let at = from;
  for (const [name, first, last] of response.spans) {
    const [start, end] = [Math.max(first, from), Math.min(last, to)];
    if (start >= end) continue;
    if (start > at) found.push({ name: null, start: at, end: start });
    found.push({ name, start, end });
    at = end;
  }
  if (at < to) found.push({ name: null, start: at, end: to });
  return found;
}

const shade = (entropy, scale) => Math.min(SHADES, Math.round((SHADES * entropy) / scale));

function tokenSpan(token, number, scale) {
  const shaded = token.entropy === null ? "unknown" : `shade-${shade(token.entropy, scale)}`;
  const empty = token.text === "" ? " empty" : ""; // part of a character, or a stop token without text
  const known = token.likeliest ? " has-alternatives" : "";
  return element("span", { class: `token ${shaded}${empty}${known}`, "data-token": number }, visible(token.text));
}

function responseBlocks(response, tokens, scale) {
  if (!tokens.length) return [element("div", { class: "segment" }, element("div", { class: "text" }, visible(response.text)))];
  return segmentBlocks(segmentsOf(response, 0, tokens.length), response.segments, tokens, scale);
}

// `means`: the mean entropy of each segment in nats.
function segmentBlocks(segments, means, tokens, scale) {
  return segments.map(({ name, start, end }) => {
    const spans = tokens.slice(start, end).map((token, i) => tokenSpan(token, start + i, scale));
    const mean = means[name];
    const entropy = mean === undefined ? "" : `, mean entropy ${mean.toFixed(2)} nats`;
    const label = name && element("p", { class: "segment-name" }, name, element("span", { class: "soft" }, `${end - start} tokens${entropy}`));
    return element("div", { class: `segment ${name ?? "between"}` }, label, element("div", { class: "text" }, ...spans));
  });
}

function describeToken(tokens, number) {
  const { text, entropy, likeliest, sampled } = tokens[number];
  const known = entropy === null ? "unknown" : `${entropy.toFixed(2)} nats`;
  return [
    element("div", { class: "soft" }, `token ${number + 1} of ${tokens.length}`),
    element("div", {}, element("code", {}, visible(JSON.stringify(text)))),
    element("div", {}, "entropy ", element("b", {}, known)),
    ...(likeliest ? [alternativesTable(likeliest, sampled)] : []),
  ];
}

// The likeliest tokens at this place. The sampled one is in bold if it is among them.
function alternativesTable(likeliest, sampled) {
  const rows = likeliest.map(([text, probability], i) =>
    element("tr", { class: i === sampled ? "sampled" : "" },
      element("td", {}, element("code", {}, visible(JSON.stringify(text)))),
      element("td", { class: "number" }, probability < 0.001 ? "< 0.1 %" : percent(probability)),
      element("td", {}, drawn("svg", { width: 60, height: 8, "aria-hidden": "true" },
        drawn("rect", { width: 60 * probability, height: 8, class: "probability" })))));
  return element("table", { class: "alternatives" },
    element("caption", {}, sampled < 0 ? "likeliest tokens, without the sampled one" : "likeliest tokens"), element("tbody", {}, ...rows));
}

// Makes the tokens of a response readable: by pointer, and by key once the text has the focus. ← and → go through all
// tokens, ↑ and ↓ through those of high entropy.
function readTokens(text, tokens, scale) {
  let at = -1;
  const show = (number, x, y) => tooltip.show(x, y, ...describeToken(tokens, number));
  const point = (event) => {
    const token = event.target.closest("[data-token]");
    if (token) show(Number(token.dataset.token), event.clientX, event.clientY);
    else tooltip.hide();
  };
  const go = (number) => {
    text.querySelector(".token.active")?.classList.remove("active");
    at = Math.max(0, Math.min(tokens.length - 1, number));
    const token = text.querySelector(`[data-token="${at}"]`);
    token.classList.add("active");
    token.scrollIntoView({ block: "nearest" });
    const describe = () => {
      const box = token.getBoundingClientRect();
      show(at, box.left, box.bottom - 6);
    };
    describe();
    requestAnimationFrame(describe); // the event of scrolling, which hides the tooltip, comes before the next frame
  };
  const uncertain = (token) => token.likeliest || token.entropy >= scale / 2;
  const keys = {
    ArrowRight: () => go(at + 1),
    ArrowLeft: () => go(at - 1),
    Home: () => go(0),
    End: () => go(tokens.length - 1),
    ArrowDown: () => jump(tokens.findIndex((token, i) => i > at && uncertain(token))),
    ArrowUp: () => jump(tokens.findLastIndex((token, i) => i < at && uncertain(token))),
  };
  const jump = (number) => number >= 0 && go(number);
  text.addEventListener("pointermove", point);
  text.addEventListener("click", point);
  text.addEventListener("pointerleave", () => tooltip.hide());
  text.addEventListener("blur", () => tooltip.hide());
  text.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tooltip.hide();
    if (!tokens.length || event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key]();
  });
}

function entropyScale(scale) {
  const steps = Array.from({ length: SHADES + 1 }, (_, i) => element("span", { class: `shade-${i}` }));
  return element(
    "div",
    { class: "scale", role: "img", "aria-label": `Colour scale of the entropy, from 0 to ${scale} nats or more` },
    element("span", {}, "entropy 0"),
    element("span", { class: "ramp" }, ...steps),
    element("span", {}, `≥ ${scale} nats`),
  );
}
