// Texts that others are writing, put together from live parts (P-71). They are in no log.

import { isObject, presenceEntries } from "./kinds.js";

const MAX_TEXTS = 64;
const MAX_TEXTS_OF_ONE = 8;
const MAX_CHARS = 65_536; // of a long text the end is kept
const MAX_FINISHED = 1_000;
const IDLE_MS = 60_000;

export const isLivePart = ({ kind }) => kind.startsWith("live/");

export class LiveTexts {
  constructor() {
    this.version = 0; // counts changes
    this._texts = new Map(); // by sender and id of the complete message
    this._finished = new Set();
  }

  get all() {
    return [...this._texts.values()];
  }

  /** Add a part. Parts of two senders for one id are two texts, until the message shows whose it is. */
  add({ kind, from, correlation_id: id, context, payload }, now) {
    if (kind !== "live/text" || typeof id !== "string" || this._finished.has(id) || !isObject(payload)) return;
    const { offset, text } = payload;
    if (!Number.isSafeInteger(offset) || offset < 0 || typeof text !== "string") return;
    const key = JSON.stringify([from, id]);
    this.version += 1;
    if (payload.ended === true) {
      this._texts.delete(key);
      return;
    }
    let found = this._texts.get(key);
    if (!found) {
      this._makeRoom(from);
      this._texts.set(key, (found = { key, id, from, context, text: "", end: 0, at: now }));
    }
    found.at = now;
    append(found, offset, text);
  }

  /** A logged envelope has come: it replaces its parts, and a participant that left writes no more. */
  observe(envelope) {
    this._finished.add(envelope.id);
    if (this._finished.size > MAX_FINISHED) this._finished.delete(this._finished.values().next().value);
    if (!this._texts.size) return;
    this._drop((text) => text.id === envelope.id);
    if (envelope.kind !== "system/presence") return;
    const left = presenceEntries(envelope.payload).filter(({ event }) => event === "leave");
    const ids = new Set(left.map(({ participant }) => participant?.id));
    this._drop((text) => ids.has(text.from));
  }

  /** Drop the texts that have not grown for a minute. */
  expire(now) {
    this._drop((text) => now - text.at >= IDLE_MS);
  }

  clear() {
    this._drop(() => true);
  }

  _drop(isGone) {
    for (const text of this.all) {
      if (!isGone(text)) continue;
      this._texts.delete(text.key);
      this.version += 1;
    }
  }

  _makeRoom(from) {
    const own = this.all.filter((text) => text.from === from);
    if (own.length >= MAX_TEXTS_OF_ONE) this._texts.delete(own[0].key);
    else if (this._texts.size >= MAX_TEXTS) this._texts.delete(this._texts.keys().next().value);
  }
}

// Offsets count code points, and JavaScript's strings are in UTF-16.
function append(found, offset, text) {
  const points = [...text];
  if (offset + points.length <= found.end) return;
  const added = points.slice(Math.max(0, found.end - offset)).join("");
  found.text = (found.text + (offset > found.end ? "…" : "") + added).slice(-MAX_CHARS);
  found.end = offset + points.length;
}
