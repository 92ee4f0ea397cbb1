// Sending times by the gateway's clock. An envelope's `ts` comes from its sender, and one wrong clock
// would stretch the whole timeline: it is limited to the range that the log's order allows.

import { GATEWAY } from "../kinds.js";

export class Times {
  constructor() {
    this._earliest = -Infinity; // lower bound for the next envelope
    this._welcomed = Infinity; // upper bound for replayed envelopes
    this._ahead = 0; // offset of the local clock from the gateway's
  }

  welcome({ ts, payload }, now) {
    if (!payload.resumed) this._earliest = -Infinity; // the replay may be older than what is loaded
    this._welcomed = Date.parse(ts);
    this._ahead = now - this._welcomed;
  }

  /** Return when the next envelope of the log was sent; `now` is its arrival if it is live. */
  place({ from, ts }, now) {
    const said = Date.parse(ts);
    if (from === GATEWAY) return (this._earliest = said);
    const isLive = now !== undefined;
    const latest = isLive ? now - this._ahead : this._welcomed;
    const at = Math.min(latest, Math.max(this._earliest, said));
    // The arrival of replayed envelopes is unknown: a clock that is ahead must not shift later ones.
    if (isLive) this._earliest = at;
    return at;
  }
}
