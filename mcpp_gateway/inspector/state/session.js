// One participant's stream over many connections: where to resume, and what each frame is.

import { isDirect, isObject } from "./kinds.js";

export const HISTORY = 10_000; // what is asked for at first, and after a gap

const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 8_000;
const HELD_MS = 10_000;

export class Session {
  constructor() {
    this.you = null;
    this.pod = null;
    this.limits = {};
    this.isOpen = false; // whether somebody listens to us now
    this.lastId = null; // the log's last envelope that this page knows to have passed
    this._replayLeft = 0;
    this._position = null;
    this._failures = 0;
  }

  /** Return the query of the next connection: from where we were, or with the history anew. */
  query(filter, { fresh = false } = {}) {
    const query = new URLSearchParams({ last: String(HISTORY) });
    if (this.lastId !== null && !fresh) query.set("after", this.lastId);
    if (!(filter.all && filter.all.length === 0)) query.set("filter", JSON.stringify(filter));
    return query.toString();
  }

  /** Take a welcome; tell whether the log is another one now, or has a gap. */
  welcome(payload) {
    const before = this.pod;
    this.isOpen = true;
    this.you = payload.you;
    this.pod = payload.pod;
    this.limits = payload.limits ?? {};
    this._replayLeft = payload.replayed ?? 0;
    this._position = typeof payload.position === "string" ? payload.position : null;
    const isFirst = before === null;
    const restarted = !isFirst && before.epoch !== this.pod.epoch;
    if (restarted) this.lastId = null;
    if (this._replayLeft === 0) this._pass();
    return { isFirst, restarted, gap: !isFirst && !restarted && !payload.resumed };
  }

  /** Say what an envelope is: told to us alone, replayed, or live. */
  classify(envelope) {
    if (isDirect(envelope)) return "direct";
    this.lastId = envelope.id;
    if (this._replayLeft === 0) return "live";
    this._replayLeft -= 1;
    if (this._replayLeft === 0) this._pass();
    return "history";
  }

  get isReplaying() {
    return this._replayLeft > 0;
  }

  /** Say what follows the end of a connection: another attempt after a while, or none. */
  closed(code, heldMs) {
    this.isOpen = false;
    if (code >= 4500 && code <= 4999) return { retry: false };
    // A welcome alone is no success: a line that ends again and again is not to be hurried.
    if (heldMs >= HELD_MS) this._failures = 0;
    const delay = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this._failures);
    this._failures += 1;
    return { retry: true, delay };
  }

  // The replay is over: whatever the filter hid of it, the log was read up to here.
  _pass() {
    if (this._position !== null) this.lastId = this._position;
  }
}

export const isWelcome = (envelope) =>
  envelope.kind === "system/welcome" && isObject(envelope.payload) && isObject(envelope.payload.pod);
