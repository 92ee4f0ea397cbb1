// When an envelope was sent, by the gateway's clock. Its `ts` is only its sender's word, and one
// wrong clock would stretch the timeline of all: it counts where the log's order leaves room for it.

import { GATEWAY } from "./kinds.js";

export class Times {
  constructor() {
    this._earliest = -Infinity; // what comes next was not sent before this
    this._welcomed = Infinity; // and what is replayed not after this
    this._ahead = 0; // how far this machine's clock is before the gateway's
  }

  welcome({ ts, payload }, now) {
    if (!payload.resumed) this._earliest = -Infinity; // what comes may be older than what came
    this._welcomed = Date.parse(ts);
    this._ahead = now - this._welcomed;
  }

  /** Return when the next envelope of the log was sent; `now` is when it came, if it came live. */
  place({ from, ts }, now) {
    const said = Date.parse(ts);
    if (from === GATEWAY) return (this._earliest = said);
    const isLive = now !== undefined;
    const latest = isLive ? now - this._ahead : this._welcomed;
    const at = Math.min(latest, Math.max(this._earliest, said));
    // Of what is replayed nobody knows when it came: a clock that is ahead must not push the rest.
    if (isLive) this._earliest = at;
    return at;
  }
}
