// A page of `egpo report --live` asks its server whether the run has new data, and takes over what is new.

const ASK_EVERY_MS = 2000;

class LivePage {
  constructor(parts) {
    this.parts = parts;
    this.status = byId("live");
    this.version = null;
    this.ask();
  }

  async ask() {
    try {
      const { version, error } = await (await fetch("version", { cache: "no-store" })).json();
      if (this.version !== null && version !== this.version) await this.takeOver();
      this.version = version;
      this.say(error ? `The run cannot be read: ${error}` : "This page follows the run.");
    } catch {
      this.say(`The server does not answer: this page shows the state of ${byId("state-time").textContent}.`);
    }
    setTimeout(() => this.ask(), ASK_EVERY_MS);
  }

  say(text) {
    if (this.status.textContent !== text) this.status.textContent = text;
  }

  // The sections are replaced; those that a script fills get the new data and keep what the reader has chosen.
  async takeOver() {
    const fresh = new DOMParser().parseFromString(await (await fetch("./", { cache: "no-store" })).text(), "text/html");
    dataDocument = fresh;
    const scripted = { curves: this.parts.charts && fresh.getElementById("charts"), responses: this.parts.browser && fresh.getElementById("response-browser") };
    const sections = [...fresh.querySelectorAll("main > section")].map((section) =>
      scripted[section.id] ? byId(section.id) : document.importNode(section, true));
    document.querySelector("main").replaceChildren(...sections);
    byId("state-time").textContent = fresh.getElementById("state-time").textContent;
    document.querySelector("nav").replaceChildren(...[...fresh.querySelector("nav").children].map((link) => document.importNode(link, true)));
    if (scripted.curves) this.parts.charts.update(readJson("chart-data"));
    else this.parts.charts = startCharts();
    if (scripted.responses) this.parts.browser.update(new ResponseStore(readJson("response-index")));
    else this.parts.browser = startBrowser();
  }
}
