// Row heights of a long list: prefix sums in logarithmic time (a Fenwick tree).

export class Heights {
  constructor() {
    this.length = 0;
    this._own = [];
    this._sums = [0]; // 1-based; _sums[i] covers the rows (i - lowbit(i), i]
  }

  push(height) {
    this.length += 1;
    const i = this.length;
    this._own[i - 1] = height;
    let sum = height;
    const low = i & -i;
    for (let step = 1; step < low; step *= 2) sum += this._sums[i - step];
    this._sums[i] = sum;
  }

  set(index, height) {
    const change = height - this._own[index];
    if (change === 0) return;
    this._own[index] = height;
    for (let i = index + 1; i <= this.length; i += i & -i) this._sums[i] += change;
  }

  get(index) {
    return this._own[index];
  }

  /** Remove the rows from `length` on. The sums of the remaining rows do not include them. */
  truncate(length) {
    this.length = length;
    this._own.length = length;
    this._sums.length = length + 1;
  }

  /** Return the top of a row: the sum of the heights before it. */
  top(index) {
    let sum = 0;
    for (let i = index; i > 0; i -= i & -i) sum += this._sums[i];
    return sum;
  }

  get total() {
    return this.top(this.length);
  }

  /** Return the index of the row at a distance from the top. */
  find(y) {
    let at = 0;
    let left = y;
    for (let step = 2 ** Math.floor(Math.log2(this.length || 1)); step >= 1; step /= 2) {
      if (at + step <= this.length && this._sums[at + step] <= left) {
        at += step;
        left -= this._sums[at];
      }
    }
    return Math.min(at, Math.max(0, this.length - 1));
  }
}
