// The log as received: envelopes in the pod's order, and marks where it is interrupted.
//
// Entries have permanent numbers (`seq`). If there are too many, the oldest are removed in large steps.

export class Log {
  constructor({ maxEntries = 100_000, maxChars = 256 * 1024 * 1024 } = {}) {
    this.entries = [];
    this.first = 0; // the seq of entries[0]
    this._maxEntries = maxEntries;
    this._maxChars = maxChars;
    this._chars = 0;
    this.size = 0; // number of envelopes
    this.restart = -1; // seq of the last mark of a log that was lost
    this._byId = new Map(); // the last with that id: ids may recur after the gateway has forgotten them
  }

  get end() {
    return this.first + this.entries.length;
  }

  at(seq) {
    return this.entries[seq - this.first];
  }

  find(id) {
    return this._byId.get(id);
  }

  /** Add an envelope and return its entry. */
  add(envelope, text, facts = {}) {
    const entry = { ...facts, seq: this.end, envelope, text };
    this._byId.set(envelope.id, entry);
    this.size += 1;
    this._chars += text.length;
    this.entries.push(entry);
    return entry;
  }

  /** Add a mark where the log was interrupted, lost or filtered differently. */
  mark(mark, message) {
    if (mark === "restart") this.restart = this.end;
    this.entries.push({ seq: this.end, mark, message });
  }

  /** Remove the oldest tenth if there is too much, and return what was removed. */
  trim() {
    if (this.entries.length <= this._maxEntries && this._chars <= this._maxChars) return [];
    return this._drop(Math.ceil(this.entries.length / 10));
  }

  /** Remove the entries up to and including a seq, and return them. */
  dropTo(seq) {
    return this._drop(seq + 1 - this.first);
  }

  _drop(count) {
    const gone = this.entries.splice(0, count);
    this.first += gone.length;
    for (const entry of gone) {
      if (!entry.envelope) continue;
      if (this.find(entry.envelope.id) === entry) this._byId.delete(entry.envelope.id);
      this.size -= 1;
      this._chars -= entry.text.length;
    }
    return gone;
  }
}
