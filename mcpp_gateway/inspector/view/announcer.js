// What comes, told to those who hear the page: now and then, and not each of hundreds a second.

import { byId, many, setText } from "./dom.js";

const EVERY_MS = 5_000;
const SHOWN_CHARS = 120;

export class Announcer {
  constructor() {
    this._count = 0;
    this._latest = null;
    setInterval(() => this._say(), EVERY_MS);
  }

  heard(envelope) {
    this._count += 1;
    this._latest = envelope;
  }

  _say() {
    if (!this._count) return;
    const { kind, from, payload } = this._latest ?? {}; // none: a mark, or what is kept back
    const text = kind === "chat" ? payload?.text : undefined;
    const said = typeof text === "string" ? ` ${from}: ${text.slice(0, SHOWN_CHARS)}` : "";
    setText(byId("announcer"), `${many(this._count, "new envelope")}.${said}`);
    this._count = 0;
  }
}
