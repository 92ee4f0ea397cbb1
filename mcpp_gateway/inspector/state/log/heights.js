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

/** Heights whose first rows can be replaced without a change of the others, which may be many. */
export class SplitHeights {
  constructor() {
    this._head = new Heights();
    this._tail = new Heights();
  }

  get length() {
    return this._head.length + this._tail.length;
  }

  get total() {
    return this._head.total + this._tail.total;
  }

  /** Replace the first rows. */
  setHead(heights) {
    this._head = new Heights();
    for (const height of heights) this._head.push(height);
  }

  push(height) {
    this._tail.push(height);
  }

  set(index, height) {
    const [part, at] = this._part(index);
    part.set(at, height);
  }

  get(index) {
    const [part, at] = this._part(index);
    return part.get(at);
  }

  /** Remove the rows from `length` on, but none of the head. */
  truncate(length) {
    this._tail.truncate(Math.max(0, length - this._head.length));
  }

  top(index) {
    const [part, at] = this._part(index);
    return part.top(at) + (part === this._tail ? this._head.total : 0);
  }

  find(y) {
    const above = this._head.total;
    if (this._tail.length && y >= above) return this._head.length + this._tail.find(y - above);
    return this._head.find(y);
  }

  _part(index) {
    const { length } = this._head;
    return index < length ? [this._head, index] : [this._tail, index - length];
  }
}
