// The page's state of its pod, updated by received frames. No DOM, no socket, no clock.

import { compile, everything, isSame } from "./filter/filter.js";
import { GATEWAY, isObject, presenceEntries, readEnvelope } from "./kinds.js";
import { Log } from "./log/log.js";
import { Outbox } from "./connection/outbox.js";
import { overlay } from "./log/overlay.js";
import { Proposals } from "./proposals.js";
import { Rates } from "./log/rates.js";
import { HISTORY, Session, isWelcome } from "./connection/session.js";
import { Times } from "./log/times.js";
import { Tracker } from "./results/transient.js";
import { ContextTree } from "./tree.js";

const BREAKS = {
  restart: "The gateway was restarted. A new log begins here.",
  gap: "The connection was lost for too long. Some envelopes are missing here.",
  hole: "Envelopes hidden by another filter may be missing here. The gateway no longer has them.",
};

export class Model {
  constructor({ newId, limits } = {}) {
    this.session = new Session();
    this.outbox = new Outbox(this.session, { newId, changed: (id) => this._redraw([id]) });
    this.rates = new Rates();
    this._times = new Times();
    this.participants = new Map(); // id → {id, capabilities, present}
    this.filter = everything;
    this._test = compile(everything);
    this.changed = new Set(); // seqs of entries to redraw; cleared by the view
    this.concluded = []; // contexts concluded since; cleared by the view
    this.expired = 0; // counts expiries: rows that show a context's state are redrawn
    this.rebuilt = 0; // counts replacements of entries: views are rebuilt
    this.cleared = 0; // counts replacements of the tree: older nodes are no longer valid
    this._limits = limits;
    this._generation = 0;
    this._loadedUnder = []; // the filters in force when the loaded entries were received
    this._reload = null; // while the history is reloaded: the entries received so far
    this._clear();
  }

  get me() {
    return this.session.you?.id ?? null;
  }

  /** Process a frame and return its class: welcome, filter, direct, history, live or unreadable. */
  receive(text, now) {
    const envelope = readEnvelope(text);
    if (!envelope) return "unreadable";
    if (isWelcome(envelope)) {
      this._times.welcome(envelope, now);
      this._welcome(envelope.payload);
      this.outbox.refuseTooLarge(envelope);
      return "welcome";
    }
    const place = this.session.classify(envelope);
    if (envelope.kind === "system/filter" && envelope.from === GATEWAY) {
      this.outbox.confirm(envelope.correlation_id);
      if (!isSame(envelope.payload.filter, this.filter)) this._setGeneration(envelope.payload.filter);
      return "filter";
    }
    if (envelope.kind === "system/error" && place === "direct") this.outbox.refuse(envelope);
    const facts = { place, generation: this._generation, under: this.filter };
    if (place !== "direct") facts.at = this._times.place(envelope, place === "live" ? now : undefined);
    if (this._reload) {
      this._reload.arrived.push({ envelope, text, facts });
      if (!this.session.isReplaying) this._finishReload();
    } else {
      this._add(envelope, text, facts, now);
    }
    return place;
  }

  /** Return a request without effect whose answer shows that the gateway is alive; null if one is pending. */
  probe() {
    return this.outbox.hasFilter ? null : { kind: "pod/filter", payload: { filter: this.filter } };
  }

  /** Return the message texts to send again on a new connection. */
  unconfirmed() {
    const isDecided = (id) => ["fulfilled", "withdrawn"].includes(this.proposals.get(id)?.state);
    return this.outbox.repeat(isDecided);
  }

  /** Return whether a filter requires reloading the history: an earlier filter may have hidden parts. */
  needsHistory(filter) {
    return this._loadedUnder.some((past) => !isSame(past, everything) && !isSame(past, filter));
  }

  /** Use a filter from the next connection on, which reloads the history if necessary. */
  useFilter(filter) {
    this.outbox.dropFilters();
    if (this.isReloading || this.needsHistory(filter)) this._reload = { arrived: [] };
    this._setGeneration(filter);
  }

  get isReloading() {
    return this._reload !== null;
  }

  /** Return the state of a context: "open" only if its conclusion would have been sent to us. */
  stateOf(node) {
    if (node.state !== "open") return node.state;
    if (node.isUncertain) return "unknown";
    // A filter may also have hidden its first envelope: any participant may be the creator.
    const lineage = this.tree.lineage(node);
    const mayConclude = new Set([...node.participants, ...this.participants.keys()]);
    const isSent = (from) => this._test({ kind: "conclusion", from }, lineage);
    return node.count && [...mayConclude].every(isSent) ? "open" : "unknown";
  }

  /** Return the state as text: a concluded context may also have expired. */
  stateLabel(node) {
    const state = this.stateOf(node);
    return state === "concluded" && node.expired ? "concluded, expired" : state;
  }

  /** Return whether an entry passes the filter; the gateway has checked what arrived under it. */
  passes(entry) {
    if (entry.mark || entry.generation === this._generation) return true;
    const { envelope } = entry;
    return (
      envelope.from === GATEWAY ||
      envelope.from === this.me ||
      (envelope.to?.includes(this.me) ?? false) ||
      this._test(envelope, entry.lineage)
    );
  }

  // --- private ----------------------------------------------------------------------------------

  _clear() {
    this.log = new Log(this._limits);
    this.tree = new ContextTree();
    this.tracker = new Tracker();
    this.proposals = new Proposals();
    this.types = new Set();
    this.kinds = new Set();
    this.rebuilt += 1;
    this.cleared += 1;
  }

  _welcome(payload) {
    const { isFirst, restarted, gap } = this.session.welcome(payload);
    this._setParticipants(payload);
    if (this._reload) {
      this._setGeneration(this.filter);
      this._loadedUnder = [this.filter];
      this._reload = { arrived: [], contexts: payload.contexts, restarted };
      if (!this.session.isReplaying) this._finishReload();
      return;
    }
    if (isFirst) {
      this._setGeneration(this.filter);
      if (payload.replayed >= HISTORY) this.log.markOlder();
    }
    if (restarted) this._break("restart");
    else if (gap) this._break("gap");
    this._seed(payload.contexts);
  }

  // The gateway lists the latest first.
  _seed(contexts = []) {
    for (const info of [...contexts].reverse()) this.tree.seed(info);
  }

  _setParticipants(payload) {
    for (const participant of this.participants.values()) participant.present = false;
    for (const info of payload.participants ?? []) this._arrive(info);
    this._arrive(payload.you);
  }

  _arrive(info) {
    if (!isObject(info) || typeof info.id !== "string") return;
    this.participants.set(info.id, { id: info.id, capabilities: info.capabilities ?? [], present: true });
  }

  _setGeneration(filter) {
    this.filter = filter;
    this._test = compile(filter);
    this._generation += 1;
    if (!this._loadedUnder.some((past) => isSame(past, filter))) this._loadedUnder.push(filter);
    this.rebuilt += 1;
  }

  /** Mark an interruption of the log, and what it makes uncertain. */
  _break(mark) {
    if (mark === "restart") {
      this.tree.expireAll();
      this._redraw(this.proposals.markLost());
    } else {
      this.tree.markUncertain();
      this._redraw(this.proposals.markUncertain());
    }
    this.log.mark(mark, BREAKS[mark]);
  }

  _add(envelope, text, { place, generation, under, at }, now) {
    const isNewContext = isObject(envelope.context) && !this.tree.get(envelope.context.id)?.count;
    const entry = this.log.add(envelope, text, { generation, under, at, direct: place === "direct" });
    if (envelope.from === this.me) this.outbox.confirm(envelope.id);
    this._learn(entry);
    const isLive = place === "live";
    if (place !== "direct" && now !== null) {
      this.rates.note(isLive ? now : at, now, { context: isNewContext });
    }
    if (isLive && envelope.kind === "system/presence" && envelope.from === GATEWAY) this._presence(envelope);
    this._trim();
  }

  _trim() {
    const gone = this.log.trim();
    if (!gone.length) return;
    this.rebuilt += 1;
    for (const { envelope } of gone) {
      if (!envelope) continue;
      this.tracker.forget(envelope);
      this.proposals.forget(envelope);
    }
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

  _presence({ payload }) {
    for (const entry of presenceEntries(payload)) {
      const info = entry.participant;
      if (!isObject(info)) continue;
      if (entry.event === "join") this._arrive(info);
      else if (this.participants.has(info.id)) this.participants.get(info.id).present = false;
    }
  }

  /** Merge the reloaded history with the loaded entries, and derive everything again. */
  _finishReload() {
    const { arrived, contexts, restarted } = this._reload;
    this._reload = null;
    if (restarted) this._break("restart");
    const { older, hole, rest } = overlay(this.log.entries, arrived, {
      isComplete: isSame(this.filter, everything),
      passes: (entry) => this.passes(entry),
      misses: (under) => !isSame(under, everything) && !isSame(under, this.filter),
    });
    this._clear();
    if (!older.length && arrived.length >= HISTORY) this.log.markOlder();
    older.forEach((entry, i) => {
      if (i === hole) this._break("hole");
      this._keep(entry);
    });
    if (hole === older.length) this._break("hole");
    this._seed(contexts);
    for (const one of rest) {
      if (one.facts) this._add(one.envelope, one.text, one.facts, null);
      else this._keep(one);
    }
    this._trim();
    this.changed.clear();
  }

  _keep(entry) {
    if (entry.mark in BREAKS) this._break(entry.mark);
    else if (entry.mark) this.log.mark(entry.mark, entry.message);
    else this._learn(this.log.add(entry.envelope, entry.text, entry));
  }
}
