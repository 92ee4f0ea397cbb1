// What the log view shows, in log order: the edge of the past, the loaded stretch of it, and the received log.
//
// Row keys are permanent: a position in the pod's log, a seq in the received log, or the name of an edge.

const OLDER = { edge: "older" };
const NEWER = { edge: "newer" };
const ALL = { matches: () => true };

export class Shown {
  /** `past` and `live` are the rows of the two logs. */
  constructor(past, live) {
    this._past = past;
    this._live = live;
    this._version = -1;
    this._laidOut = -1; // counts layouts of the past
    this._head = [];
  }

  /** The number of rows before the received log. */
  get head() {
    return this._head.length;
  }

  get count() {
    return this.head + this._live.rows.length;
  }

  /**
   * Update the rows; return whether those of the past or their edges changed (isNew), whether all of the
   * past is to be redrawn (isReplaced), and the index of the first new row of the received log.
   */
  update() {
    const { model: past } = this._past;
    past.sync();
    const from = this._live.update();
    const isNew = this._version !== past.version;
    const isReplaced = this._laidOut !== past.rebuilt;
    if (isNew) this._layOut(past);
    return { isNew, isReplaced, from: this.head + from };
  }

  /** Lay out the past again, because folds or the selection have changed. */
  layOutPast() {
    this._past.layOut(0);
    this._version = this._laidOut = -1;
  }

  at(index) {
    return index < this.head ? this._head[index] : this._live.rows[index - this.head];
  }

  key(index) {
    const { edge, entry, fold } = this.at(index);
    return edge ?? keyOf(entry) + (fold ? "f" : "");
  }

  /** Return the index of the row at or before a key; -1 if there is none. */
  find(key) {
    if (key === "older" || key === "newer") return this._head.findIndex(({ edge }) => edge === key);
    const isPast = key.startsWith("p");
    const number = Number.parseInt(isPast ? key.slice(1) : key, 10);
    if (!isPast) return this.head + lastUpTo(this._live.rows, (entry) => entry.seq <= number);
    return 1 + lastUpTo(this._past.rows, (entry) => entry.position <= number);
  }

  /** Return the index of the row of an entry; -1 if a fold or the search hides it. */
  indexOf(entry) {
    const index = this.find(keyOf(entry));
    const row = index >= 0 && index < this.count ? this.at(index) : null;
    return row && !row.fold && row.entry && keyOf(row.entry) === keyOf(entry) ? index : -1;
  }

  _layOut(past) {
    const { selection, descendants, search } = this._live;
    // The query has selected the entries; here a selected context is only kept from folding.
    this._past.selection = selection instanceof Object ? past.tree.get(selection.id) ?? null : null;
    this._past.descendants = descendants;
    this._past.search = search && ALL;
    this._past.update();
    this._version = past.version;
    this._laidOut = past.rebuilt;
    const hole = past.isAttached ? [] : [NEWER];
    this._head = [OLDER, ...this._past.rows, ...hole];
  }
}

/** Return the permanent key of an entry. */
export const keyOf = (entry) => (entry.position === undefined ? `${entry.seq}` : `p${entry.position}`);

// Return the index of the last row that passes a test, which none passes after one that does not.
function lastUpTo(rows, test) {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (test(rows[middle].entry)) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
