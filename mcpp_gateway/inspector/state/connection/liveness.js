// Detects connections that died silently: by probing after a silence and waiting for the answer.

const SILENT_MS = 15_000; // probe after this long without a message
const ANSWER_MS = 10_000; // close if an answer takes longer

export class LivenessMonitor {
  constructor() {
    this._receivedAt = 0;
    this._awaitingSince = null;
  }

  /** Record that something was sent that will be answered: a message, or the opening handshake. */
  sent(now) {
    this._awaitingSince ??= now;
  }

  received(now) {
    this._receivedAt = now;
    this._awaitingSince = null;
  }

  /** Return what to do now: "probe", "close" the dead connection, or nothing (null). */
  check(now) {
    if (this._awaitingSince !== null) return now - this._awaitingSince >= ANSWER_MS ? "close" : null;
    return now - this._receivedAt >= SILENT_MS ? "probe" : null;
  }
}
