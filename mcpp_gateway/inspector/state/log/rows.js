// The rows of the log view: entries after filter, selection, search and folding.
//
// A new entry adds a row at the end. When a context folds, the rows since its first entry are laid
// out again.

export class Rows {
  constructor(model) {
    this.model = model;
    // {entry} or {entry, fold: node, since, forMe, counted}: a folded context is placed at its first envelope
    // and counts the envelopes since its conclusion and those addressed to the user.
    this.rows = [];
    this.selection = null; // a ContextNode, "main", or null for all
    this.descendants = true;
    this.foldConcluded = true;
    this.search = null; // has matches(entry)
    this.revealed = null; // id of an envelope that is shown on its own account: no fold hides it
    this._folds = new Map(); // id of a context → whether it is folded, where the user has chosen
    this._foldRows = new Map();
    this._next = 0;
    this._rebuilt = -1;
  }

  /** Update the rows; return the index of the first new one. */
  update() {
    if (this._rebuilt !== this.model.rebuilt) {
      this._rebuilt = this.model.rebuilt;
      this.model.concluded.length = 0;
      return this.layOut(0);
    }
    // Contexts concluded since may fold now, which changes earlier rows.
    const folding = this.model.concluded.splice(0).filter((node) => this.isFolded(node));
    const seq = Math.min(this._next, ...folding.map((node) => this._beginning(node)));
    return seq < this._next ? this.layOut(seq) : this._append(this.rows.length);
  }

  /** Lay out again from an entry on; return the index of the first new row. */
  layOut(seq) {
    let index = this.rows.length;
    while (index > 0 && this.rows[index - 1].entry.seq >= seq) index -= 1;
    this.rows.length = index;
    for (const [node, at] of this._foldRows) if (at >= index) this._foldRows.delete(node);
    this._next = seq;
    return this._append(index);
  }

  isFolded(node) {
    return this._folds.get(node.id) ?? (this.foldConcluded && node.conclusion !== null && !this._holdsRevealed(node));
  }

  /** Fold or unfold a context; return the index of the first new row. */
  fold(node, folded) {
    this._folds.set(node.id, folded);
    return this.layOut(this._beginning(node));
  }

  /** Return whether an entry passes the filter, the selection and the search. */
  isIncluded(entry) {
    if (entry.mark) return !this.search;
    const { selection } = this;
    const node = entry.node ?? null;
    if (selection === "main") {
      if (node) return false;
    } else if (selection && !(this.descendants ? node?.isWithin(selection) : node === selection)) {
      return false;
    }
    if (!this.model.passes(entry)) return false;
    return !this.search || this.search.matches(entry);
  }

  /** Return the entries of the selection in order, folded or not. */
  selected() {
    const { log } = this.model;
    return log.entries.filter((entry) => entry.envelope && this.isIncluded(entry));
  }

  // Return the seq of the first entry of a context or of its descendants.
  _beginning(node) {
    let first = node.firstSeq < 0 ? Infinity : node.firstSeq;
    for (const child of node.children) first = Math.min(first, this._beginning(child));
    return first;
  }

  _append(from) {
    const { log } = this.model;
    this._next = Math.max(this._next, log.first);
    for (; this._next < log.end; this._next += 1) {
      const entry = log.at(this._next);
      this._place(entry, entry.node ?? null);
    }
    return from;
  }

  _place(entry, node) {
    if (!this.isIncluded(entry)) return;
    const folded = this.search ? null : this._outermostFold(node);
    if (!folded) {
      this.rows.push({ entry });
      return;
    }
    if (!this._foldRows.has(folded)) {
      this._foldRows.set(folded, this.rows.length);
      this.rows.push({ entry, fold: folded, since: 0, forMe: 0, counted: -1 });
    }
    const row = this.rows[this._foldRows.get(folded)];
    if (entry.seq <= row.counted) return; // laid out again because another context folded
    row.counted = entry.seq;
    row.since += Number(this._isSinceConclusion(entry, folded));
    row.forMe += Number(entry.envelope.to?.includes(this.model.me) ?? false);
    this.model.changed.add(row.entry.seq);
  }

  // A conclusion that is no longer loaded is older than everything loaded.
  _isSinceConclusion({ seq }, { conclusion }) {
    return Boolean(conclusion) && seq > (this.model.log.find(conclusion.id)?.seq ?? -1);
  }

  _holdsRevealed(node) {
    return this.revealed !== null && Boolean(this.model.log.find(this.revealed)?.node?.isWithin(node));
  }

  // The selected context itself does not fold, only its descendants do.
  _outermostFold(node) {
    let found = null;
    for (let above = node; above && above !== this.selection; above = above.parent) {
      if (this.isFolded(above)) found = above;
    }
    return found;
  }
}
