// The log grouped by contexts, as mcpp/protocol/tree.py does. A context whose parent is one of another pod (E-30) is
// below the mirrored one, where a link has brought that here.

import { GATEWAY, isObject } from "./kinds.js";
import { localId } from "./log/references.js";
import { endsContext, outcomeOf, stepOf, stepsIn, titleIn, usageOf } from "./outcomes.js";

const MAX_MODELS = 10; // listed by name for each participant

/** A sum of tokens. Owns its numbers. */
class TokenSum {
  constructor() {
    this.input = 0;
    this.output = 0;
    this.cached = 0;
  }

  get isEmpty() {
    return !(this.input || this.output);
  }

  add({ input, output, cached }, sign = 1) {
    this.input += sign * input;
    this.output += sign * output;
    this.cached += sign * cached;
  }
}

export class ContextNode {
  constructor(id, number) {
    this.id = id;
    this.number = number; // distinguishes contexts that reuse a forgotten id
    this.type = undefined;
    this.parent = null;
    this.reference = null; // to its parent in another pod, where that is shown as the mirrored one
    this.children = [];
    this.participants = new Set();
    this.creator = undefined;
    this.count = 0; // own envelopes
    this.total = 0; // including descendants
    this.conclusion = null;
    this.usage = null; // what its conclusion reports
    this.tokens = new TokenSum(); // including descendants
    this.title = undefined;
    this.steps = []; // that the creator expects
    this.done = new Set(); // those of them that were begun
    this.expired = false;
    this.isUncertain = false; // whether its conclusion may be missing
    this.isPlaced = true; // false until an envelope shows how old it is
    this.firstSeq = -1;
    this.start = Infinity; // milliseconds, including descendants
    this.end = -Infinity;
  }

  get state() {
    if (this.conclusion) return outcomeOf(this.conclusion);
    return this.expired ? "expired" : "open";
  }

  /** How many of the expected steps were begun, such as "2 of 4"; null without steps. */
  get progress() {
    return this.steps.length ? `${this.done.size} of ${this.steps.length}` : null;
  }

  get depth() {
    let depth = 0;
    for (let above = this.parent; above; above = above.parent) depth += 1;
    return depth;
  }

  isWithin(other) {
    for (let node = this; node; node = node.parent) if (node === other) return true;
    return false;
  }
}

const isChange = ({ from, payload }) =>
  from === GATEWAY && isObject(payload) && ["expired", "revived"].includes(payload.event);

/** Return the contexts that a `system/context` is about: one, or several that expired together. */
function changedContexts({ context, contexts, started, last }) {
  const all = isObject(context) ? [{ ...context, started, last }] : Array.isArray(contexts) ? contexts : [];
  return all.filter((one) => isObject(one) && typeof one.id === "string");
}

export class ContextTree {
  constructor(firstNumber = 0) {
    this.roots = [];
    this.mainCount = 0;
    this.size = 0;
    this.version = 0; // changes with every change of a type or parent
    this.tokensBy = new Map(); // participant → model → sum
    this._current = new Map();
    this._made = firstNumber;
  }

  get(id) {
    return this._current.get(id);
  }

  /** Yield every context, parents before children. */
  *[Symbol.iterator]() {
    const pending = [...this.roots].reverse();
    while (pending.length) {
      const node = pending.pop();
      yield node;
      for (let i = node.children.length - 1; i >= 0; i -= 1) pending.push(node.children[i]);
    }
  }

  /** Add a context that the gateway lists as alive. Its first envelope determines its position. */
  seed(info) {
    if (!isObject(info) || typeof info.id !== "string") return;
    if (localId(info.id) !== info.id) return; // of another pod: shown only where it is a parent
    const made = this._made;
    const node = this._node(info.id);
    this._update(node, info);
    for (const one of [node, node.parent]) if (one?.number >= made) one.isPlaced = false;
  }

  /** Add an envelope; return the node of its context, null in the main context. */
  add(envelope, seq, at) {
    const { context } = envelope;
    if (!isObject(context) || typeof context.id !== "string") {
      this.mainCount += 1;
      if (envelope.kind === "system/context") this._change(envelope);
      return null;
    }
    const node = this._node(context.id);
    if (node.expired) node.creator = undefined; // it had no envelope, and the gateway has forgotten it
    node.expired = false;
    node.creator ??= envelope.from;
    if (envelope.from === node.creator) this._fix(node, context); // C-02
    this._putLast(node);
    if (!node.count) node.firstSeq = seq;
    node.count += 1;
    node.participants.add(envelope.from);
    for (let above = node; above; above = above.parent) {
      above.total += 1;
      if (at < above.start) above.start = at;
      if (at > above.end) above.end = at;
    }
    if (envelope.from === node.creator) this._describe(node, envelope);
    return node;
  }

  // C-17, C-19 to C-21: only what the creator says about its context counts.
  _describe(node, envelope) {
    node.title ??= titleIn(envelope.context.metadata);
    if (!node.steps.length) node.steps = stepsIn(envelope.context.metadata);
    if (endsContext(envelope)) this._conclude(node, envelope);
    const step = node.steps.length ? stepOf(envelope) : undefined;
    if (node.steps.includes(step)) node.done.add(step);
  }

  // C-17: a later conclusion replaces the earlier one, and what that one reported.
  _conclude(node, conclusion) {
    if (node.usage) this._count(node, -1);
    node.conclusion = conclusion;
    node.usage = conclusion && usageOf(conclusion);
    if (node.usage) this._count(node, 1);
  }

  _count(node, sign) {
    const { conclusion: { from }, usage } = node;
    if (!this.tokensBy.has(from)) this.tokensBy.set(from, new Map());
    const models = this.tokensBy.get(from);
    const model = models.has(usage.model) || models.size < MAX_MODELS ? usage.model : "others";
    if (!models.has(model)) models.set(model, new TokenSum());
    models.get(model).add(usage, sign);
    for (let above = node; above; above = above.parent) above.tokens.add(usage, sign);
  }

  /** Return a context's lineage for filters: its id, type and ancestors, as of now. */
  lineage(node) {
    if (!node) return null;
    if (node.lineage?.version === this.version) return node.lineage;
    const ancestors = [];
    for (let one = node; one.parent; one = one.parent) {
      ancestors.push(one.reference ?? one.parent.id);
      if (one.reference) break; // filters go by what the gateway knows
    }
    node.lineage = { id: node.id, type: node.type, ancestors, version: this.version };
    return node.lineage;
  }

  /** Expire all contexts, because the gateway lost its log. */
  expireAll() {
    for (const node of this._current.values()) node.expired = true;
  }

  /** Mark all contexts as possibly concluded, because envelopes are missing. */
  markUncertain() {
    for (const node of this._current.values()) node.isUncertain = true;
  }

  _node(id) {
    let node = this._current.get(id);
    if (!node || (node.expired && node.count)) {
      node = new ContextNode(id, this._made);
      this._made += 1;
      this._current.set(id, node);
      this.roots.push(node);
      this.size += 1;
      this.version += 1;
    }
    return node;
  }

  // Apply what the gateway says about a context.
  _update(node, info) {
    node.expired = false;
    node.creator = typeof info.creator === "string" ? info.creator : undefined;
    this._fix(node, info);
  }

  _fix(node, { type, parent }) {
    if (node.type === undefined && typeof type === "string") {
      node.type = type;
      this.version += 1;
    }
    if (node.parent || typeof parent !== "string") return;
    const mirrored = localId(parent) === parent ? undefined : this._current.get(localId(parent));
    if (mirrored) node.reference = parent;
    this._place(node, mirrored ?? this._node(parent));
  }

  // A context seen for the first time is newer than all seen before.
  _putLast(node) {
    for (let one = node; one; one = one.parent) {
      if (one.isPlaced) continue;
      one.isPlaced = true;
      const siblings = one.parent?.children ?? this.roots;
      siblings.splice(siblings.indexOf(one), 1);
      siblings.push(one);
    }
  }

  _place(node, parent) {
    if (parent.isWithin(node)) return; // a cycle
    this.roots.splice(this.roots.lastIndexOf(node), 1);
    node.parent = parent;
    parent.children.push(node);
    for (let above = parent; above; above = above.parent) {
      above.total += node.total;
      above.tokens.add(node.tokens);
      above.start = Math.min(above.start, node.start);
      above.end = Math.max(above.end, node.end);
    }
    this.version += 1;
  }

  _change(envelope) {
    if (!isChange(envelope)) return;
    const { payload } = envelope;
    for (const context of changedContexts(payload)) {
      if (payload.event === "revived") this._revive(context);
      else this._expire(context);
    }
  }

  _revive(info) {
    const node = this.get(info.id) ?? this._node(info.id);
    this._update(node, info);
    // In a log without the beginning, another seemed to be the creator.
    if (node.conclusion && node.conclusion.from !== node.creator) this._conclude(node, null);
  }

  _expire(context) {
    const node = this.get(context.id);
    if (!node) return;
    node.expired = true;
    // The gateway's times include envelopes that were not sent to this page.
    const [start, end] = [Date.parse(context.started), Date.parse(context.last)];
    if (start < node.start) node.start = start;
    if (end > node.end) node.end = end;
  }
}
