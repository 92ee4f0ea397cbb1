// The past: one stretch of the pod's log, loaded in pages before the log that this page has received.
//
// The stretch has no holes. It grows at either edge as the user scrolls, and if it becomes too long, the
// pages at the other edge are dropped; they are loaded again on demand. `isAttached` says that nothing is
// missing between its newest entry and the oldest of the received log. Everything belongs to one query:
// another query starts an empty stretch.

import { GATEWAY } from "../kinds.js";
import { LogModel } from "../log/log-model.js";

const PAGE = 250; // entries requested at once
const MAX_ENTRIES = 2_000; // deriving everything from these takes a few milliseconds
const MAX_CHARS = 16 * 1024 * 1024;
const FIRST_NODE = 1e9;
const MUCH_UNINDEXED = 3_000; // entries; an index that follows the log is closer behind it
const INSTANT = 0.001; // seconds; bounds are exclusive
const MIN_ENTRIES = 100; // never dropped: they may be in view

export class Past extends LogModel {
  /** `live` is the model of the received log. */
  constructor(live, { maxEntries = MAX_ENTRIES, maxChars = MAX_CHARS, minEntries = MIN_ENTRIES, page = PAGE } = {}) {
    super({ maxEntries: Infinity, maxChars: Infinity }, FIRST_NODE);
    this._live = live;
    this._bounds = { maxEntries, maxChars, minEntries };
    this._page = page;
    this._seen = [live.cleared, live.log.first];
    this.query = {};
    this.version = 0; // changes with everything that is shown
    this.start = 0; // the oldest position that the gateway can read
    this.indexing = null; // the share of the log that is indexed, while the index is being built
    this.restart();
  }

  get me() {
    return this._live.me;
  }

  get outbox() {
    return this._live.outbox;
  }

  get session() {
    return this._live.session;
  }

  /** Whether older entries can be requested: a log that was lost has none before it. */
  get isAvailable() {
    return this._live.session.pod !== null && this._live.log.restart < this._live.log.first;
  }

  get isEmpty() {
    return this._pages.length === 0;
  }

  /** Set the query: members of `pod/history`. Another one starts again at the received log. */
  use(query) {
    if (JSON.stringify(query) === JSON.stringify(this.query)) return;
    this.query = query;
    this.restart();
  }

  /** Drop everything, and start again before the received log. */
  restart() {
    this._begin({ isAttached: true });
  }

  /** Start again with one entry of a page, if it is not received; what surrounds it is loaded on both sides. */
  around(entry) {
    this._begin({ isAttached: false });
    this._pages = [[entry]];
    this._derive();
  }

  /** Return the request for the first entry at or after a time, in seconds. */
  firstSince(time) {
    return { ...this.query, after: time - INSTANT, order: "oldest", limit: 1 };
  }

  /** Follow the received log: if it was replaced, start again; if it lost its beginning, there is a hole. */
  sync() {
    const { cleared, log } = this._live;
    const [before, first] = this._seen;
    this._seen = [cleared, log.first];
    if (before === cleared && first === log.first) return;
    if (before !== cleared || (this.isEmpty && this.isAttached)) {
      this.restart();
    } else {
      this.isAttached = false;
      this.version += 1;
    }
  }

  /** Stop waiting for answers that will not come. */
  disconnect() {
    this.older.asked = this.newer.asked = false;
    this.version += 1;
  }

  /** Return the payload of a request for entries at an edge ("older" or "newer"), null if there is none to make. */
  ask(name) {
    this.sync();
    const edge = this[name];
    if (edge.asked || edge.isDone || !this.isAvailable || (name === "newer" && this.isAttached)) return null;
    edge.asked = true;
    edge.problem = "";
    edge.request ??= name === "older" ? this._before() : this._after();
    this.version += 1;
    return edge.request;
  }

  /** Add a page that answers the request at an edge. */
  accept(name, request, page) {
    this.sync();
    const edge = this[name];
    if (edge.request !== request || page.epoch !== this._live.session.pod?.epoch) return;
    edge.asked = false;
    this.start = page.start;
    edge.request = page.next === null ? null : { ...request, cursor: page.next };
    edge.isDone = page.next === null;
    const added = name === "older" ? this._prepend(page.entries) : this._append(page.entries);
    if (name === "newer" && edge.isDone) this.isAttached = true;
    if (added) this._derive();
    this.version += 1;
  }

  /** Note how far the index of a page's log is. */
  noteIndex({ start, end, indexedTo }) {
    this.indexing = end - indexedTo >= MUCH_UNINDEXED ? Math.max(0, indexedTo - start) / (end - start) : null;
  }

  /** Return whether an entry of a page is among those that are shown. */
  shows({ envelope }) {
    return !isPresenceOf(envelope, this.me); // the received log has none, either (G-33)
  }

  /** Note that a request was refused; without a message it is made again. */
  refuse(name, request, message) {
    const edge = this[name];
    if (edge.request !== request) return;
    edge.asked = false;
    edge.problem = message;
    this.version += 1;
  }

  /** Note that the gateway no longer has the envelope at an edge, and so none before it. */
  lose(name, request) {
    if (this[name].request !== request) return;
    this.start = 1;
    if (name === "newer") this.restart();
    else Object.assign(this.older, { asked: false, isDone: true });
    this.version += 1;
  }

  /** Return the request for the newest page of the query, to count its entries. */
  firstRequest() {
    return this._older(this._newest());
  }

  /** Return the state of an edge: loading, problem, end, idle or unavailable. */
  stateOfEdge(name) {
    const { asked, isDone, problem } = this[name];
    if (!this.isAvailable) return "unavailable";
    return asked ? "loading" : problem ? "problem" : isDone ? "end" : "idle";
  }

  // --- what views of a log ask ------------------------------------------------------------------

  passes() {
    return true; // the gateway has applied the query
  }

  /** Return the state of a context; the received log may know how it ended. */
  stateOf(node) {
    if (node.state !== "open") return node.state;
    const now = this._live.tree.get(node.id);
    return now ? this._live.stateOf(now) : "unknown";
  }

  /** Return whether a node belongs to a stretch, or to none yet, and not to the received log. */
  has(node) {
    return node.number >= FIRST_NODE || node.number < 0;
  }

  stateLabel(node) {
    const state = this.stateOf(node);
    return node.conclusion && node.expired ? `${state}, expired` : state;
  }

  // --- private ----------------------------------------------------------------------------------

  _begin({ isAttached }) {
    this._pages = [];
    this.isAttached = isAttached;
    this.older = newEdge();
    this.newer = newEdge();
    this._derive();
  }

  _before() {
    return this._older(this._pages[0]?.[0].envelope.id ?? this._newest());
  }

  _older(before) {
    return { ...this.query, ...(before === undefined ? {} : { before }), order: "newest", limit: this._page };
  }

  _newest() {
    return this.query.before ?? this._firstReceived();
  }

  _after() {
    return { ...this.query, after: this._pages.at(-1).at(-1).envelope.id, order: "oldest", limit: this._page };
  }

  _firstReceived() {
    return this._live.log.entries.find(({ envelope, direct }) => envelope && !direct)?.envelope.id;
  }

  /** Return whether an entry of a page is in the received log. */
  isReceived({ envelope, text }) {
    const entry = this._live.log.find(envelope.id);
    return entry !== undefined && !entry.direct && entry.text === text;
  }

  _prepend(entries) {
    const first = this._pages[0]?.[0].position ?? Infinity;
    const older = ordered([...entries].reverse()).filter(({ position }) => position < first);
    const received = older.findIndex((entry) => this.isReceived(entry));
    if (received >= 0) {
      // The received log begins there: what was loaded after it is not before it.
      older.length = received;
      this._pages = [];
      this.isAttached = true;
    }
    if (!older.length) return received >= 0;
    this._pages.unshift(older);
    while (this._isTooLong(this._pages.at(-1))) {
      this._pages.pop();
      this.isAttached = false;
      this.newer = newEdge();
    }
    return true;
  }

  _append(entries) {
    const last = this._pages.at(-1)?.at(-1).position ?? -Infinity;
    const newer = ordered(entries).filter(({ position }) => position > last);
    const received = newer.findIndex((entry) => this.isReceived(entry));
    if (received >= 0) {
      this.isAttached = true;
      newer.length = received;
    }
    if (!newer.length) return false;
    this._pages.push(newer);
    while (this._isTooLong(this._pages[0])) {
      this._pages.shift();
      this.older = newEdge();
    }
    return true;
  }

  _isTooLong(page) {
    const { maxEntries, maxChars, minEntries } = this._bounds;
    const entries = this._pages.flat();
    const chars = entries.reduce((sum, { text }) => sum + text.length, 0);
    return (entries.length > maxEntries || chars > maxChars) && entries.length - page.length >= minEntries;
  }

  _derive() {
    this._clear();
    for (const { position, time, envelope, text, erased } of this._pages.flat()) {
      if (!this.shows({ envelope })) continue;
      this._learn(this.log.add(envelope, text, { position, time, at: time * 1000, erased }));
    }
    this.changed.clear();
    this.concluded.length = 0;
    this.version += 1;
  }
}

const isPresenceOf = ({ kind, from, payload }, me) =>
  kind === "system/presence" && from === GATEWAY && payload?.participant?.id === me;

// `request` is the next or the pending one; null is computed from the entry at the edge.
const newEdge = () => ({ asked: false, isDone: false, problem: "", request: null });

// A gateway's page is in order; whatever it sends, the rows are.
function ordered(entries) {
  let last = -Infinity;
  return entries.filter(({ position }) => position > last && ((last = position), true));
}
