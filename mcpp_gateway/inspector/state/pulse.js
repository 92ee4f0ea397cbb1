// Whether anybody is at the other end. A line may die without a word: then only silence tells.

const SILENT_MS = 15_000; // so long nothing need be said before one asks
const ANSWER_MS = 10_000; // so long an answer may take

export class Pulse {
  constructor() {
    this._heard = 0;
    this._asked = null; // since when something is owed to us
  }

  /** Take note that something was sent that is answered: a message, or the opening itself. */
  asked(now) {
    this._asked ??= now;
  }

  heard(now) {
    this._heard = now;
    this._asked = null;
  }

  /** Say what to do now: "ask" something harmless, take the line for "lost", or nothing. */
  check(now) {
    if (this._asked !== null) return now - this._asked >= ANSWER_MS ? "lost" : null;
    return now - this._heard >= SILENT_MS ? "ask" : null;
  }
}
