// What participants are writing now, below the log, until the complete message is in it.

import { byId, h, hueOf, setText } from "./elements/dom.js";
import { Keyed } from "./elements/keyed.js";

const SHOWN_CHARS = 600; // the end of a text
const SHOWN_TEXTS = 4;

export class LiveView {
  constructor(model) {
    this._model = model;
    this._box = byId("live");
    this._texts = new Keyed(this._box);
    this._version = -1;
  }

  update() {
    const { live } = this._model;
    if (live.version === this._version) return;
    this._version = live.version;
    const texts = live.all.slice(-SHOWN_TEXTS);
    this._texts.update(texts.map((text) => ({ key: text.key, version: 0, make: () => makeText(text) })));
    for (const text of texts) {
      const element = this._texts.elements.get(text.key).lastChild;
      const shown = text.text.length > SHOWN_CHARS ? `…${text.text.slice(-SHOWN_CHARS)}` : text.text;
      setText(element, shown);
    }
    this._box.hidden = texts.length === 0;
    this._box.scrollTop = this._box.scrollHeight;
  }
}

function makeText({ from, context }) {
  const where = typeof context?.id === "string" ? ` in ${context.id.slice(-6)}` : "";
  return h(
    "p",
    { class: "live-text", dir: "auto" },
    h("span", { class: `who hue-${hueOf(from)}`, dir: "auto" }, from),
    h("span", { class: "live-label" }, ` is writing${where} `),
    h("span", { class: "live-words" }),
  );
}
