// Draws a response token by token: shaded by entropy, divided into its segments.

const SHADES = 12;

// The tokens as [text, entropy in nats or null], in order.
function tokensOf(response) {
  let start = 0;
  return response.lengths.map((length, i) => {
    const text = response.text.slice(start, (start += length));
    const hundredths = response.entropies.length ? response.entropies[i] : -1;
    return { text, entropy: hundredths < 0 ? null : hundredths / 100 };
  });
}

// Ranges of tokens by segment; `null` for tokens outside of all segments, such as tags.
function segmentsOf(response, count) {
  const found = [];
  let at = 0;
  for (const [name, start, end] of response.spans) {
    if (start > at) found.push({ name: null, start: at, end: start });
    found.push({ name, start, end });
    at = end;
  }
  if (at < count) found.push({ name: null, start: at, end: count });
  return found;
}

const shade = (entropy, scale) => Math.min(SHADES, Math.round((SHADES * entropy) / scale));

function tokenSpan(token, number, scale) {
  const shaded = token.entropy === null ? "unknown" : `shade-${shade(token.entropy, scale)}`;
  const empty = token.text === "" ? " empty" : ""; // part of a character, or a stop token without text
  return element("span", { class: `token ${shaded}${empty}`, "data-token": number }, visible(token.text));
}

function responseBlocks(response, scale) {
  const tokens = tokensOf(response);
  if (!tokens.length) return [element("div", { class: "segment" }, element("div", { class: "text" }, visible(response.text)))];
  return segmentsOf(response, tokens.length).map(({ name, start, end }) => {
    const spans = tokens.slice(start, end).map((token, i) => tokenSpan(token, start + i, scale));
    const mean = response.segments[name];
    const entropy = mean === undefined ? "" : `, mean entropy ${mean.toFixed(2)} nats`;
    const label = name && element("p", { class: "segment-name" }, name, element("span", { class: "soft" }, `${end - start} tokens${entropy}`));
    return element("div", { class: `segment ${name ?? "between"}` }, label, element("div", { class: "text" }, ...spans));
  });
}

function describeToken(tokens, number) {
  const { text, entropy } = tokens[number];
  const known = entropy === null ? "unknown" : `${entropy.toFixed(2)} nats`;
  return [
    element("div", { class: "soft" }, `token ${number + 1} of ${tokens.length}`),
    element("div", {}, element("code", {}, visible(JSON.stringify(text)))),
    element("div", {}, "entropy ", element("b", {}, known)),
  ];
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
