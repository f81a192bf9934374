// Creates elements. Text is always inserted as text: no script of this page parses a string as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const element = (name, attributes = {}, ...children) => fill(document.createElement(name), attributes, children);
const drawn = (name, attributes = {}, ...children) => fill(document.createElementNS(SVG, name), attributes, children);
const byId = (id) => document.getElementById(id);

// The document that holds the data: this one, or a newer one that a live page has fetched.
let dataDocument = document;
const readJson = (id) => JSON.parse(dataDocument.getElementById(id).textContent);
const runClass = (place) => (place === null ? "run-none" : `run-${place % 6}`);
const swatch = (place) => element("span", { class: `swatch ${runClass(place)}`, "aria-hidden": "true" });

// Makes invisible characters visible: control characters as their symbols, others (such as direction marks) as ⟨code⟩.
const visible = (text) =>
  text
    .replace(/[\u0000-\u0008\u000b-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/[\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) => `⟨${c.charCodeAt(0).toString(16)}⟩`);

// One tooltip for the whole page, beside the pointer and inside the window.
const tooltip = {
  box: byId("tooltip"),
  show(x, y, ...content) {
    this.box.replaceChildren(...content);
    this.box.hidden = false;
    const { width, height } = this.box.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - width - 14 : x + 14;
    const top = y + 14 + height > innerHeight ? y - height - 14 : y + 14;
    this.box.style.left = `${Math.max(4, left)}px`;
    this.box.style.top = `${Math.max(4, top)}px`;
  },
  hide() {
    this.box.hidden = true;
  },
};

function setOptions(select, options, chosen) {
  select.replaceChildren(...options.map(([value, name]) => element("option", { value }, name)));
  select.value = `${chosen}`;
}

const button = (text, onclick, attributes = {}) => element("button", { type: "button", onclick, ...attributes }, text);
