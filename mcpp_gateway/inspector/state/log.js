// The log as this page has received it: envelopes in the pod's order, and marks where it breaks.
//
// Entries are numbered for good (`seq`). The oldest go once there are too many, in large steps.

const OLDER = "Older envelopes are not loaded.";

export class Log {
  constructor({ maxEntries = 100_000, maxChars = 256 * 1024 * 1024 } = {}) {
    this.entries = [];
    this.first = 0; // the seq of entries[0]
    this._maxEntries = maxEntries;
    this._maxChars = maxChars;
    this._chars = 0;
    this.size = 0; // how many envelopes there are
    this._byId = new Map(); // the last with that id: a gateway takes one again once it has forgotten it
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

  /** Add a line that is no envelope: here the log was cut, lost or filtered differently. */
  mark(mark, message) {
    const entry = { seq: this.end, mark, message };
    this.entries.push(entry);
    return entry;
  }

  /** Say that there was more before what comes next. */
  markOlder() {
    this.mark("older", OLDER);
  }

  /** Let the oldest tenth go if there is too much, and return what went. */
  trim() {
    if (this.entries.length <= this._maxEntries && this._chars <= this._maxChars) return [];
    const count = Math.max(2, Math.ceil(this.entries.length / 10));
    // The last of them leaves its place to the mark.
    const seq = this.first + count - 1;
    const gone = this.entries.splice(0, count, { seq, mark: "older", message: OLDER });
    this.first = seq;
    for (const entry of gone) {
      if (!entry.envelope) continue;
      if (this.find(entry.envelope.id) === entry) this._byId.delete(entry.envelope.id);
      this.size -= 1;
      this._chars -= entry.text.length;
    }
    return gone;
  }
}
