// The log grouped by contexts, as mcpp/tree.py does it: who thought what, inside of what.

import { isObject } from "./kinds.js";

export class ContextNode {
  constructor(id, number) {
    this.id = id;
    this.number = number; // an id may come back after it expired: the number tells them apart
    this.type = undefined;
    this.parent = null;
    this.children = [];
    this.participants = new Set();
    this.creator = undefined;
    this.count = 0; // its own envelopes
    this.total = 0; // with those below it
    this.conclusion = null;
    this.expired = false;
    this.isDoubtful = false; // whether its conclusion may be among what is missing
    this.isPlaced = true; // false as long as nothing has come that would tell since when it is
    this.firstSeq = -1;
    this.start = Infinity; // milliseconds, with what lies below it
    this.end = -Infinity;
  }

  get state() {
    if (this.conclusion) return "concluded";
    return this.expired ? "expired" : "open";
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

const isExpiry = (payload) =>
  isObject(payload) &&
  payload.event === "expired" &&
  isObject(payload.context) &&
  typeof payload.context.id === "string";

export class ContextTree {
  constructor() {
    this.roots = [];
    this.mainCount = 0;
    this.size = 0;
    this.version = 0; // changes whenever a type or a place does
    this._current = new Map();
    this._made = 0;
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

  /** Learn of a context that the gateway says is alive. It takes its place with its first envelope. */
  seed(info) {
    if (!isObject(info) || typeof info.id !== "string") return;
    const made = this._made;
    const node = this._node(info.id);
    this._fix(node, info);
    for (const one of [node, node.parent]) if (one?.number >= made) one.isPlaced = false;
  }

  /** Put an envelope in its place; return its context's node and lineage, null in the main one. */
  add(envelope, seq, at) {
    const { context } = envelope;
    if (!isObject(context) || typeof context.id !== "string") {
      this.mainCount += 1;
      if (envelope.kind === "system/context") this._expire(envelope.payload);
      return null;
    }
    const node = this._node(context.id);
    this._fix(node, context);
    this._putLast(node);
    if (node.creator === undefined) {
      node.creator = envelope.from;
      node.firstSeq = seq;
    }
    node.count += 1;
    node.participants.add(envelope.from);
    for (let above = node; above; above = above.parent) {
      above.total += 1;
      if (at < above.start) above.start = at;
      if (at > above.end) above.end = at;
    }
    // C-17: nobody may replace another's reasoning.
    if (envelope.kind === "conclusion" && envelope.from === node.creator) {
      node.conclusion = envelope;
    }
    return node;
  }

  /** Return what filters ask of a context: its id, its type and the ids above it, as of now. */
  lineage(node) {
    if (!node) return null;
    if (node.lineage?.version === this.version) return node.lineage;
    const ancestors = [];
    for (let above = node.parent; above; above = above.parent) ancestors.push(above.id);
    node.lineage = { id: node.id, type: node.type, ancestors, version: this.version };
    return node.lineage;
  }

  /** The gateway has lost its log: no context of before is alive. */
  expireAll() {
    for (const node of this._current.values()) node.expired = true;
  }

  /** Something is missing: any context may have come to its conclusion there. */
  doubt() {
    for (const node of this._current.values()) node.isDoubtful = true;
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

  _fix(node, { type, parent }) {
    node.expired = false;
    if (node.type === undefined && typeof type === "string") {
      node.type = type;
      this.version += 1;
    }
    if (!node.parent && typeof parent === "string") this._place(node, this._node(parent));
  }

  // What is heard of for the first time is newer than all that was heard of before.
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
      above.start = Math.min(above.start, node.start);
      above.end = Math.max(above.end, node.end);
    }
    this.version += 1;
  }

  _expire(payload) {
    const node = isExpiry(payload) && this.get(payload.context.id);
    if (!node) return;
    node.expired = true;
    // What the gateway counted, where this page was not sent it.
    const [start, end] = [Date.parse(payload.started), Date.parse(payload.last)];
    if (start < node.start) node.start = start;
    if (end > node.end) node.end = end;
  }
}
