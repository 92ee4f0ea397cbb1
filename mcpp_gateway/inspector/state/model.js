// The page's state of its pod, updated by received frames. No DOM, no socket, no clock.

import { compile, everything, isSame } from "./filter/filter.js";
import { GATEWAY, isObject, presenceEntries, readEnvelope } from "./kinds.js";
import { LogModel } from "./log/log-model.js";
import { Outbox } from "./connection/outbox.js";
import { overlay } from "./log/overlay.js";
import { Requests } from "./history/requests.js";
import { Rates } from "./log/rates.js";
import { Questions } from "./questions/questions.js";
import { Cards } from "./cards.js";
import { LiveTexts, isLivePart } from "./live.js";
import { ReplayControl, readReplay } from "./replay.js";
import { Session, isWelcome } from "./connection/session.js";
import { Times } from "./log/times.js";

const BREAKS = {
  restart: "The gateway was restarted. A new log begins here.",
  gap: "The connection was lost for too long. Some envelopes are missing here.",
  hole: "Envelopes hidden by another filter may be missing here.",
};

export class Model extends LogModel {
  constructor({ newId, limits } = {}) {
    super(limits);
    this.session = new Session();
    this.outbox = new Outbox(this.session, { newId, changed: (id) => this._redraw([id]) });
    this.history = new Requests(newId);
    this.replay = null; // of a pod that replays a recorded stretch
    this.live = new LiveTexts();
    this.cards = new Cards(newId);
    this.replayControl = new ReplayControl(newId);
    this.rates = new Rates();
    this.questions = new Questions();
    this._times = new Times();
    this.participants = new Map(); // id → {id, capabilities, present}
    this.filter = everything;
    this._test = compile(everything);
    this._generation = 0;
    this._loadedUnder = []; // the filters in force when the loaded entries were received
    this._reload = null; // while the history is reloaded: the entries received so far
    this._isResumed = false; // whether this connection goes on where the last one ended
    this.isStale = false; // whether something that is loaded was erased: `reload` is due
  }

  get me() {
    return this.session.you?.id ?? null;
  }

  /** Process a frame and return its class: welcome, part, filter, page, replay, direct, history, live or unreadable. */
  receive(text, now) {
    const envelope = readEnvelope(text);
    if (!envelope) return "unreadable";
    if (isWelcome(envelope)) {
      this.history.drop();
      this.cards.drop();
      this.replayControl.lose();
      this._times.welcome(envelope, now);
      this.replay = readReplay(envelope.payload.pod.replay);
      this._isResumed = envelope.payload.resumed === true;
      this._welcome(envelope.payload);
      this.outbox.refuseTooLarge(envelope);
      return "welcome";
    }
    if (isLivePart(envelope)) {
      this.live.add(envelope, now); // not in the log, and not a position
      return "part";
    }
    const place = this.session.classify(envelope);
    if (place !== "direct") this.live.observe(envelope);
    if (envelope.kind === "system/filter" && envelope.from === GATEWAY) {
      this.outbox.confirm(envelope.correlation_id);
      if (!isSame(envelope.payload.filter, this.filter)) this._setGeneration(envelope.payload.filter);
      return "filter";
    }
    if (envelope.kind === "system/replay" && place === "direct") {
      this.replayControl.answer(envelope.correlation_id);
      this.replay = readReplay(envelope.payload) ?? this.replay;
      return "replay";
    }
    if (envelope.kind === "system/card" && place === "direct") {
      this.cards.answer(envelope);
      return "card";
    }
    if (envelope.kind === "system/history" && place === "direct") {
      this.history.answer(envelope, text);
      return "page";
    }
    if (envelope.kind === "system/error" && place === "direct") {
      if (this.history.refuse(envelope)) return "page";
      if (this.cards.refuse(envelope)) return "card";
      if (envelope.payload?.error === "rate_limited") this.replayControl.lose();
      else this.replayControl.answer(envelope.correlation_id);
      this.outbox.refuse(envelope);
    }
    // H-10: what was loaded before is still as it was.
    const isErasure = envelope.kind === "system/erased" && envelope.from === GATEWAY;
    if (isErasure && (place === "live" || this._isResumed)) this.isStale = true;
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

  /** Forget everything that is loaded, and reload it on the next connection. */
  reload() {
    this._clear();
    this._reload = { arrived: [] };
    this.isStale = false;
  }

  /** Forget the entries up to a mark where some are missing: the history has them all. */
  forgetTo(seq) {
    this._forget(this.log.dropTo(seq));
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

  /** Return the state as text: a context that has ended may also have expired. */
  stateLabel(node) {
    const state = this.stateOf(node);
    return node.conclusion && node.expired ? `${state}, expired` : state;
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
    if (isFirst) this._setGeneration(this.filter);
    // A replay that went back shows its log again, up to where it is now.
    if (restarted && this.replay) this._clear();
    else if (restarted) this._break("restart");
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
    const card = typeof info.card === "string" ? info.card : undefined;
    this.participants.set(info.id, { id: info.id, capabilities: info.capabilities ?? [], present: true, card });
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
      this.claims.clear();
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
    if (isLive && envelope.kind === "system/update" && envelope.from === GATEWAY) this._update(envelope);
    this._forget(this.log.trim());
  }

  _forget(gone) {
    if (!gone.length) return;
    this.rebuilt += 1;
    for (const { envelope } of gone) {
      if (!envelope) continue;
      this.tracker.forget(envelope);
      this.proposals.forget(envelope);
    }
  }

  /** Note that the user has seen that the proposer is gone. */
  confirm(proposal) {
    proposal.isConfirmed = true;
    this._redraw([proposal.envelope.id]);
  }

  _update({ payload }) {
    const info = payload?.participant;
    if (isObject(info) && this.participants.get(info.id)?.present) this._arrive(info);
  }

  _presence({ payload }) {
    const changed = new Set(presenceEntries(payload).map(({ participant }) => participant?.id));
    this._redraw(this.proposals.open.filter(({ envelope }) => changed.has(envelope.from)).map(({ envelope }) => envelope.id));
    for (const entry of presenceEntries(payload)) {
      const info = entry.participant;
      if (!isObject(info)) continue;
      if (entry.event === "join") this._arrive(info);
      else if (this.participants.has(info.id)) {
        this.participants.get(info.id).present = false;
        this.questions.forget(info.id);
      }
    }
  }

  /** Merge the reloaded history with the loaded entries, and derive everything again. */
  _finishReload() {
    const { arrived, contexts, restarted } = this._reload;
    this._reload = null;
    if (restarted && this.replay) this._clear();
    else if (restarted) this._break("restart");
    const { older, hole, rest } = overlay(this.log.entries, arrived, {
      isComplete: isSame(this.filter, everything),
      passes: (entry) => this.passes(entry),
      misses: (under) => !isSame(under, everything) && !isSame(under, this.filter),
    });
    this._clear();
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
    this._forget(this.log.trim());
    this.changed.clear();
  }

  _learn(entry) {
    super._learn(entry);
    if (!entry.direct && entry.envelope) this.questions.add(entry.envelope, this.me);
  }

  _clear() {
    super._clear();
    this.questions?.forget(); // absent while the base class is constructed
  }

  _keep(entry) {
    if (entry.mark in BREAKS) this._break(entry.mark);
    else this._learn(this.log.add(entry.envelope, entry.text, entry));
  }
}
