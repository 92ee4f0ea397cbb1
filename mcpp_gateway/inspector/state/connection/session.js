// The user's session across connections: where to resume, and the class of each frame.

import { isDirect, isObject } from "../kinds.js";

export const HISTORY = 10_000; // envelopes requested at first, and after a gap

const FIRST_DELAY_MS = 250;
const LONGEST_DELAY_MS = 8_000;
const HELD_MS = 10_000;
const POSITION_LOST = 4002;
const MOVED_DELAY_MS = 50;

export class Session {
  constructor() {
    this.you = null;
    this.pod = null;
    this.limits = {};
    this.isOpen = false;
    this.lastId = null; // the last known envelope of the log, to resume from
    this._replayLeft = 0;
    this._position = null;
    this._failures = 0;
  }

  /** Return the query of the next connection: to resume, or to reload the history. */
  query(filter, { fresh = false } = {}) {
    const query = new URLSearchParams({ last: String(HISTORY) });
    if (this.lastId !== null && !fresh) query.set("after", this.lastId);
    if (!(filter.all && filter.all.length === 0)) query.set("filter", JSON.stringify(filter));
    return query.toString();
  }

  /** Process a welcome; return whether the log was restarted or has a gap. */
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

  /** Return the class of an envelope: "direct", "history" (replayed) or "live". */
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

  /** Return whether to reconnect after a connection has closed, and after which delay. */
  closed(code, heldMs) {
    this.isOpen = false;
    if (code >= 4500 && code <= 4999) return { retry: false };
    // H-13: a replay that is moved closes its connections, which is no failure.
    if (code === POSITION_LOST && heldMs > 0 && isObject(this.pod?.replay)) return { retry: true, delay: MOVED_DELAY_MS };
    // A welcome alone does not reset the delay: a connection that keeps closing must back off.
    if (heldMs >= HELD_MS) this._failures = 0;
    const delay = Math.min(LONGEST_DELAY_MS, FIRST_DELAY_MS * 2 ** this._failures);
    this._failures += 1;
    return { retry: true, delay };
  }

  // After the replay, the log is read up to the position of the welcome, even if a filter hid parts.
  _pass() {
    if (this._position !== null) this.lastId = this._position;
  }
}

export const isWelcome = (envelope) =>
  envelope.kind === "system/welcome" && isObject(envelope.payload) && isObject(envelope.payload.pod);
