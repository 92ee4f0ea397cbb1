// All that the page knows of its pod: frames in, facts out. No DOM, no socket, no clock.

import { compile, everything, isSame } from "./filter.js";
import { GATEWAY, isObject, readEnvelope } from "./kinds.js";
import { Log } from "./log.js";
import { Proposals } from "./proposals.js";
import { Rates } from "./rates.js";
import { HISTORY, Session, isWelcome } from "./session.js";
import { Times } from "./times.js";
import { Tracker } from "./transient.js";
import { ContextTree } from "./tree.js";

const MAX_REFUSALS = 200;

/** An envelope over the gateway's limit: sent all the same it would cost the connection (P-07). */
export class TooLargeError extends Error {
  constructor(bytes, limit) {
    const [size, most] = [bytes, limit].map((number) => number.toLocaleString("en"));
    super(`This is too large to be sent: ${size} bytes, and the gateway takes ${most}.`);
  }
}

export class Model {
  constructor({ newId, limits } = {}) {
    this.session = new Session();
    this.rates = new Rates();
    this._times = new Times();
    this.roster = new Map(); // id → {id, capabilities, present}
    this.refusals = [];
    this.filter = everything;
    this._test = compile(everything);
    this.pending = new Map(); // what we sent and nobody has confirmed, by id
    this.due = []; // texts to send now that what they follow is confirmed; whoever sends takes them
    this.changed = new Set(); // seqs of entries that look different now; whoever draws clears it
    this.concluded = []; // contexts that have come to their conclusion since; likewise
    this.expired = 0; // counts how often contexts have: what shows their state looks different then
    this.rebuilt = 0; // counts how often entries were replaced, so that views begin anew
    this.cleared = 0; // counts how often contexts were: a node of before is none of now
    this._newId = newId;
    this._limits = limits;
    this._generation = 0;
    this._loadedUnder = []; // the filters under which the loaded entries came
    this._reload = null; // while the history comes anew: the entries so far
    this._clear();
  }

  get me() {
    return this.session.you?.id ?? null;
  }

  /** Take one frame; return what kind of thing it was. */
  receive(text, now) {
    const envelope = readEnvelope(text);
    if (!envelope) return "unreadable";
    if (isWelcome(envelope)) {
      this._times.welcome(envelope, now);
      this._welcome(envelope.payload);
      this._dropTooLarge(envelope);
      return "welcome";
    }
    const place = this.session.classify(envelope);
    if (envelope.kind === "system/filter" && envelope.from === GATEWAY) {
      this.pending.delete(envelope.correlation_id);
      if (!isSame(envelope.payload.filter, this.filter)) this._setGeneration(envelope.payload.filter);
      return "filter";
    }
    if (envelope.kind === "system/error" && place === "direct") this._refused(envelope);
    const facts = { place, generation: this._generation };
    if (place !== "direct") facts.at = this._times.place(envelope, place === "live" ? now : undefined);
    if (this._reload) {
      this._reload.arrived.push({ envelope, text, facts });
      if (!this.session.isReplaying) this._finishReload();
    } else {
      this._add(envelope, text, facts, now);
    }
    return place;
  }

  /**
   * Return the text of an envelope to send, which counts as sent once it comes back: what is to
   * follow it `then` becomes due, and never if it is refused. Throw a TooLargeError if it cannot be
   * sent.
   */
  compose(draft, now) {
    const envelope = this._write(draft, now);
    const then = draft.then && this._write(draft.then, now);
    const problem = this._tooLarge(envelope);
    if (problem) throw problem;
    // A request with other arguments is about the proposal that its rejection names.
    const about = (then ?? envelope).correlation_id;
    this.pending.set(envelope.id, { envelope, then, since: now, about });
    this._redraw([about]);
    return JSON.stringify(envelope);
  }

  /** Return our answer to an envelope that is on its way. */
  answerTo(id) {
    return [...this.pending.values()].find(({ about }) => about === id)?.envelope;
  }

  /** Return why our last answer to an envelope was refused, unless another is on its way. */
  refusalOf(id) {
    if (this.answerTo(id)) return undefined;
    return this.refusals.findLast(({ answers }) => answers === id)?.envelope.payload?.message;
  }

  /** Return what we said that is not confirmed, the oldest first: {envelope, since} each. */
  get unheard() {
    return [...this.pending.values()].filter(({ envelope }) => envelope.kind === "chat");
  }

  /** Tell whether something that a person said or decided waits for the line. */
  get isOwed() {
    return !this.session.isOpen && [...this.pending.values()].some(({ envelope }) => envelope.kind !== "pod/filter");
  }

  /** Return a question that changes nothing, so that the answer is a sign of life. */
  question() {
    const asked = [...this.pending.values()].some(({ envelope }) => envelope.kind === "pod/filter");
    return asked ? null : { kind: "pod/filter", payload: { filter: this.filter } };
  }

  /** Return what has to be sent again on a new connection: the pod knows a repetition by its id. */
  unconfirmed() {
    this.due.length = 0;
    this._dropDecided();
    return [...this.pending.values()].map(({ envelope }) => JSON.stringify(this._mine(envelope)));
  }

  /** Tell whether a filter needs the history anew: something of it was never sent to us. */
  needsHistory(filter) {
    return this._loadedUnder.some((past) => !isSame(past, everything) && !isSame(past, filter));
  }

  /** Use a filter from the next connection on, which reads the history anew if that is needed. */
  useFilter(filter) {
    for (const [id, { envelope }] of this.pending) {
      if (envelope.kind === "pod/filter") this.pending.delete(id); // this one is newer
    }
    if (this.isReloading || this.needsHistory(filter)) this._reload = { arrived: [] };
    this._setGeneration(filter);
  }

  get isReloading() {
    return this._reload !== null;
  }

  /** Return how a context stands: open only if its conclusion would have been sent to us. */
  stateOf(node) {
    if (node.state !== "open") return node.state;
    // A filter may have hidden its beginning, too: anybody may be the one who has it to conclude.
    const lineage = this.tree.lineage(node);
    const mayConclude = new Set([...node.participants, ...this.roster.keys()]);
    const isSent = (from) => this._test({ kind: "conclusion", from }, lineage);
    return node.count && [...mayConclude].every(isSent) ? "open" : "unknown";
  }

  /** Return the same in words: a conclusion outlives its context. */
  standing(node) {
    const state = this.stateOf(node);
    return state === "concluded" && node.expired ? "concluded, expired" : state;
  }

  /** Tell whether an entry passes the filter: what came under it was judged by the gateway. */
  passes(entry, test = this._test) {
    if (entry.mark || entry.generation === this._generation) return true;
    const { envelope } = entry;
    return (
      envelope.from === GATEWAY ||
      envelope.from === this.me ||
      (envelope.to?.includes(this.me) ?? false) ||
      test(envelope, entry.lineage)
    );
  }

  // --- private ---------------------------------------------------------------------------------

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
    this._setRoster(payload);
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
    if (restarted) {
      this._markRestart();
    } else if (gap) {
      this.log.mark("gap", "The line was cut for too long: some envelopes are missing here.");
    }
    this._seed(payload.contexts);
  }

  // The gateway names the latest first.
  _seed(contexts = []) {
    for (const info of [...contexts].reverse()) this.tree.seed(info);
  }

  _setRoster(payload) {
    for (const participant of this.roster.values()) participant.present = false;
    for (const info of payload.participants ?? []) this._arrive(info);
    this._arrive(payload.you);
  }

  _arrive(info) {
    if (!isObject(info) || typeof info.id !== "string") return;
    this.roster.set(info.id, { id: info.id, capabilities: info.capabilities ?? [], present: true });
  }

  _setGeneration(filter) {
    this.filter = filter;
    this._test = compile(filter);
    this._generation += 1;
    if (!this._loadedUnder.some((past) => isSame(past, filter))) this._loadedUnder.push(filter);
    this.rebuilt += 1;
  }

  _refused(envelope) {
    const { envelope: about, about: answers } = this.pending.get(envelope.correlation_id) ?? {};
    this.pending.delete(envelope.correlation_id);
    this._redraw([answers]); // it waits for an answer again
    this.refusals.push({ envelope, about, answers });
    if (this.refusals.length > MAX_REFUSALS) this.refusals.shift();
  }

  _confirm(id) {
    const { then, since, about } = this.pending.get(id) ?? {};
    this.pending.delete(id);
    if (!then) return;
    this.pending.set(then.id, { envelope: then, since, about });
    this.due.push(JSON.stringify(this._mine(then)));
  }

  _write({ id = this._newId(), kind, payload = {}, to, context, correlation_id }, now) {
    const envelope = { protocol: "mcpp/v0.1", id, ts: new Date(now).toISOString(), from: this.me };
    if (to?.length) envelope.to = to;
    envelope.kind = kind;
    if (correlation_id) envelope.correlation_id = correlation_id;
    if (context) envelope.context = context;
    return { ...envelope, payload };
  }

  // What was said before the first welcome did not know yet whose it is.
  _mine(envelope) {
    return { ...envelope, from: this.me };
  }

  _tooLarge(envelope) {
    const limit = this.session.limits.max_message_bytes ?? Infinity;
    const bytes = new TextEncoder().encode(JSON.stringify(envelope)).length;
    return bytes > limit ? new TooLargeError(bytes, limit) : null;
  }

  // What was said before a welcome did not know its limit, which may also be another one now.
  _dropTooLarge({ id, ts }) {
    for (const { envelope } of [...this.pending.values()]) {
      const problem = this._tooLarge(this._mine(envelope));
      if (!problem) continue;
      const payload = { error: "too_large", message: problem.message };
      this._refused({ id, ts, correlation_id: envelope.id, payload });
    }
  }

  // Somebody else was first while we were away: a second request would be a second call.
  _dropDecided() {
    for (const { envelope, about } of [...this.pending.values()]) {
      const state = this.proposals.get(about)?.state;
      if (state !== "fulfilled" && state !== "withdrawn") continue;
      const message = "It was not sent: the proposal was decided while the line was cut.";
      const { id, ts } = envelope;
      this._refused({ id, ts, correlation_id: id, payload: { error: "decided", message } });
    }
  }

  _markRestart() {
    this.tree.expireAll();
    this._redraw(this.proposals.lose());
    this.log.mark("restart", "The gateway was restarted: its log begins anew here.");
  }

  _add(envelope, text, { place, generation, at }, now) {
    const isNewContext = isObject(envelope.context) && !this.tree.get(envelope.context.id)?.count;
    const entry = this.log.add(envelope, text, { generation, at, direct: place === "direct" });
    this._confirm(envelope.id);
    if (!entry) {
      this._redraw([this.proposals.reopen(envelope.id)]);
      return;
    }
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
      this.proposals.forget(envelope.id);
    }
  }

  /** Let everything that is made from the log learn of an entry, in the log's order. */
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
    const info = payload?.participant;
    if (!isObject(info)) return;
    if (payload.event === "join") this._arrive(info);
    else if (this.roster.has(info.id)) this.roster.get(info.id).present = false;
  }

  /** Put what came anew behind what is older than it, and learn all of it again. */
  _finishReload() {
    const { arrived, contexts, restarted } = this._reload;
    this._reload = null;
    const old = this.log;
    const known = arrived.map(({ envelope }) => old.find(envelope.id)).find(Boolean);
    const older = known ? old.entries.slice(0, known.seq - old.first) : [];
    const kept = restarted ? old.entries : older;
    this._clear();
    if (!kept.length && arrived.length >= HISTORY) this.log.markOlder();
    for (const entry of kept) {
      const again = entry.mark
        ? this.log.mark(entry.mark, entry.message)
        : this.log.add(entry.envelope, entry.text, entry);
      again.seq = this.log.end - 1;
      if (again.envelope) this._learn(again);
    }
    if (restarted) this._markRestart();
    this._seed(contexts);
    for (const { envelope, text, facts } of arrived) this._add(envelope, text, facts, null);
    this.changed.clear();
  }
}
