// Counts what a search finds in the past, page by page and without keeping the pages.

const MAX_COUNT = 5_000; // beyond it counting goes on only as far as the user goes

export class Matches {
  constructor({ maxCount = MAX_COUNT } = {}) {
    this._step = maxCount;
    this.stop();
  }

  /** Start to count with the first request of a search. */
  start(request) {
    this.stop();
    this._request = request;
    this.isCounting = true;
  }

  stop() {
    this._maxCount = this._step;
    this._request = null;
    this._asked = false;
    this.isCounting = false;
    this.isComplete = false; // whether `positions` has them all
    this.positions = []; // the newest first
  }

  /** Return the payload of the next request, null if there is none to make. */
  ask() {
    if (!this.isCounting || this._asked) return null;
    this._asked = true;
    return this._request;
  }

  accept(request, { entries, next }) {
    if (request !== this._request) return;
    this._asked = false;
    const last = this.positions.at(-1) ?? Infinity;
    for (const { position } of entries) if (position < last) this.positions.push(position);
    this.isComplete = next === null;
    this.isCounting = next !== null && this.positions.length < this._maxCount;
    this._request = next === null ? null : { ...request, cursor: next };
  }

  /** Go on counting until a position has its place, because the user has come to it. */
  countTo(position) {
    if (!this._request || this.isCounting || position >= (this.positions.at(-1) ?? Infinity)) return;
    this._maxCount = this.positions.length + this._step;
    this.isCounting = true;
  }

  /** Stop waiting for an answer that will not come. */
  disconnect() {
    this._asked = false;
  }

  /** Return the place of a position among the matches, the newest is 1; null if it is not counted yet. */
  rank(position) {
    let [low, high] = [0, this.positions.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.positions[middle] > position) low = middle + 1;
      else high = middle;
    }
    return this.positions[low] === position ? low + 1 : null;
  }
}
