// A log and what is derived from it in log order: contexts, results, proposals, claims.

import { Log } from "./log.js";
import { Claims } from "../claims.js";
import { Proposals } from "../proposals.js";
import { Tracker } from "../results/transient.js";
import { ContextTree } from "../tree.js";

export class LogModel {
  /** Nodes of the tree are numbered from `firstNode`: no two trees in a view use the same numbers. */
  constructor(limits, firstNode = 0) {
    this.changed = new Set(); // seqs of entries to redraw; cleared by the view
    this.concluded = []; // contexts concluded since; cleared by the view
    this.expired = 0; // counts expiries: rows that show a context's state are redrawn
    this.rebuilt = 0; // counts replacements of entries: views are rebuilt
    this.cleared = 0; // counts replacements of the tree: older nodes are no longer valid
    this._limits = limits;
    this._firstNode = firstNode;
    this._clear();
  }

  // --- for subclasses ---------------------------------------------------------------------------

  _clear() {
    this.log = new Log(this._limits);
    this.tree = new ContextTree(this._firstNode);
    this.tracker = new Tracker();
    this.proposals = new Proposals();
    this.claims = new Claims();
    this.types = new Set();
    this.kinds = new Set();
    this.rebuilt += 1;
    this.cleared += 1;
  }

  /** Update everything derived from the log with an entry, in log order. */
  _learn(entry) {
    const { envelope } = entry;
    if (entry.direct) {
      entry.node = null;
      entry.lineage = null;
      return;
    }
    entry.node = this.tree.add(envelope, entry.seq, entry.at);
    entry.lineage = this.tree.lineage(entry.node);
    const { correlation_id: answered } = envelope;
    entry.about = this.log.find(answered) ? undefined : this.tree.get(answered); // E-16
    if (entry.node?.conclusion === envelope) this.concluded.push(entry.node);
    if (envelope.kind === "system/context") this.expired += 1;
    this.claims.receive(envelope, entry.at);
    this.kinds.add(envelope.kind);
    if (entry.node?.type) this.types.add(entry.node.type);
    this._redraw([...this.tracker.add(envelope), this.proposals.add(envelope, entry.text)]);
  }

  _redraw(ids) {
    for (const id of ids) {
      const other = id && this.log.find(id);
      if (other) this.changed.add(other.seq);
    }
  }
}
