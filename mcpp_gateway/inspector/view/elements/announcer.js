// Announces new envelopes to screen readers, in intervals: there may be hundreds a second.

import { byId, plural, setText } from "./dom.js";

const EVERY_MS = 5_000;
const SHOWN_CHARS = 120;

export class Announcer {
  constructor() {
    this._count = 0;
    this._latest = null;
    setInterval(() => this._announce(), EVERY_MS);
  }

  add(envelope) {
    this._count += 1;
    this._latest = envelope;
  }

  _announce() {
    if (!this._count) return;
    const { kind, from, payload } = this._latest ?? {}; // absent for a mark or a held-back entry
    const text = kind === "chat" ? payload?.text : undefined;
    const said = typeof text === "string" ? ` ${from}: ${text.slice(0, SHOWN_CHARS)}` : "";
    setText(byId("announcer"), `${plural(this._count, "new envelope")}.${said}`);
    this._count = 0;
  }
}
