// Rates of messages and new contexts: counts per second over the last minute.

const SECONDS = 60;

export class Rates {
  constructor() {
    this._second = 0;
    this._messages = new Array(SECONDS).fill(0);
    this._contexts = new Array(SECONDS).fill(0);
  }

  /** Count an envelope sent at a time up to now; older than a minute is ignored. */
  note(at, now, { context = false } = {}) {
    this._advance(now);
    const second = Math.min(this._second, Math.floor(at / 1000));
    if (!(second > this._second - SECONDS)) return;
    this._messages[second % SECONDS] += 1;
    if (context) this._contexts[second % SECONDS] += 1;
  }

  /** Return messages per second (over the last five full seconds) and contexts per minute. */
  read(now) {
    this._advance(now);
    const recent = this.history().slice(-6, -1);
    const sum = (counts) => counts.reduce((total, count) => total + count, 0);
    return { messagesPerSecond: sum(recent) / recent.length, contextsPerMinute: sum(this._contexts) };
  }

  /** Return the messages in each second of the last minute, the current one last. */
  history() {
    const from = (this._second + 1) % SECONDS;
    return [...this._messages.slice(from), ...this._messages.slice(0, from)];
  }

  _advance(now) {
    const second = Math.floor(now / 1000);
    const steps = Math.min(SECONDS, second - this._second);
    for (let i = 0; i < steps; i += 1) {
      const slot = (second - i) % SECONDS;
      this._messages[slot] = 0;
      this._contexts[slot] = 0;
    }
    if (steps > 0) this._second = second;
  }
}
