// Proposals and their states (P-20, P-21).

import { canonical, hasDuplicateKeys } from "./json.js";
import { isCoherent, isObject, parseKind } from "./kinds.js";
import { cut } from "./results/summaries.js";

export class Proposals {
  constructor() {
    this._all = new Map();
    this._made = 0;
    this._byRequest = new Map(); // by the id of the fulfilling request
  }

  get(id) {
    return this._all.get(id);
  }

  /** Return the proposal with this id and text; the id may have been reused. */
  find(id, text) {
    const proposal = this._all.get(id);
    return proposal?.text === text ? proposal : undefined;
  }

  [Symbol.iterator]() {
    return this._all.values();
  }

  get open() {
    return [...this].filter((proposal) => proposal.state === "open");
  }

  /** Mark open proposals as lost, because the gateway lost its log; return their ids. */
  markLost() {
    const lost = this.open;
    for (const proposal of lost) proposal.state = "lost";
    return lost.map(({ envelope }) => envelope.id);
  }

  /** Mark open proposals as possibly decided, because envelopes are missing; return their ids. */
  markUncertain() {
    const uncertain = this.open;
    for (const proposal of uncertain) proposal.isUncertain = true;
    return uncertain.map(({ envelope }) => envelope.id);
  }

  /** Forget a proposal that is no longer loaded, unless it is open. */
  forget(envelope) {
    const proposal = this._all.get(envelope.id);
    if (proposal?.envelope !== envelope || proposal.state === "open") return;
    this._all.delete(envelope.id);
    this._byRequest.delete(proposal.request);
  }

  /** Process the next envelope; return the id of the proposal that it changed, if any. */
  add(envelope, text) {
    const { family } = parseKind(envelope.kind);
    if (family === "mcp/proposal") {
      // P-15: approving it by its kind would make a different request.
      if (!isCoherent(envelope) || envelope.to?.length !== 1) return undefined;
      const isAmbiguous = hasDuplicateKeys(text);
      const number = this._made++; // distinguishes proposals with the same id
      const proposal = { envelope, text, number, state: "open", by: undefined, rejections: [], isAmbiguous, isUncertain: false, isConfirmed: false };
      this._all.delete(envelope.id); // so that the newest is last
      this._all.set(envelope.id, proposal);
      return envelope.id;
    }
    if (family === "mcp/response") return this._answered(envelope);
    const proposal = this._all.get(envelope.correlation_id);
    if (!proposal) return undefined;
    // A decision made during a restart is still sent.
    const isOpen = proposal.state === "open" || proposal.state === "lost";
    if (isOpen && fulfils(envelope, proposal.envelope)) {
      proposal.state = "fulfilled";
      proposal.by = envelope.from;
      proposal.request = envelope.id;
      this._byRequest.set(envelope.id, proposal);
    } else if (family === "mcp/withdraw" && isOpen && envelope.from === proposal.envelope.from) {
      proposal.state = "withdrawn";
    } else if (family === "mcp/reject") {
      // Only the last rejection of each participant, who may send thousands.
      const others = proposal.rejections.filter(({ from }) => from !== envelope.from);
      proposal.rejections = [...others, { from: envelope.from, reason: reasonOf(envelope.payload) }];
    } else {
      return undefined;
    }
    return proposal.envelope.id;
  }

  // A filter may have hidden an earlier decision; the recipient of the proposal reports it (P-20).
  _answered({ correlation_id, from, payload }) {
    const proposal = this._byRequest.get(correlation_id);
    if (proposal?.envelope.to[0] !== from) return undefined;
    const problem = payload?.error?.message;
    if (problem === "withdrawn") proposal.state = "withdrawn";
    else if (problem === "already_fulfilled") proposal.by = undefined;
    return proposal.envelope.id;
  }
}

// P-20: the same participant, the same method and the same params.
function fulfils(request, proposal) {
  const [made, asked] = [parseKind(request.kind), parseKind(proposal.kind)];
  const isSame = (one, other) => JSON.stringify(canonical(one)) === JSON.stringify(canonical(other));
  return (
    made.family === "mcp/request" &&
    made.method === asked.method &&
    made.name === asked.name &&
    isSame(request.to ?? null, proposal.to ?? null) &&
    isCoherent(request) &&
    isSame(bare(request.payload.params), bare(proposal.payload.params))
  );
}

function bare(params) {
  const { _meta, ...rest } = isObject(params) ? params : {};
  return rest;
}

function reasonOf(payload) {
  if (!isObject(payload)) return "";
  return cut([payload.reason, payload.text].filter((part) => typeof part === "string").join(": "));
}

/** Return the name of the proposed tool or method. */
export function nameOf({ envelope }) {
  const { method, name } = parseKind(envelope.kind);
  return name ?? method ?? envelope.kind;
}

/** Return the request that fulfils a proposal. */
export function approval({ envelope }, id) {
  return { ...request(envelope, id, envelope.payload.params ?? {}), correlation_id: envelope.id };
}

/**
 * Return a request with edited params, followed by a rejection of the proposal. An edited request
 * does not fulfil the proposal (P-20): it is made in the user's own name, and the proposer is notified.
 */
export function amendment(proposal, id, params) {
  const then = rejection(proposal, "edited", `requested with other arguments in ${id}`);
  return { ...request(proposal.envelope, id, params), then };
}

export function rejection({ envelope }, reason, text) {
  return {
    kind: "mcp/reject",
    payload: text === undefined ? { reason } : { reason, text },
    to: [envelope.from],
    correlation_id: envelope.id,
    context: inside(envelope),
  };
}

export function withdrawal({ envelope }) {
  const { to } = envelope;
  return { kind: "mcp/withdraw", payload: {}, to, correlation_id: envelope.id, context: inside(envelope) };
}

function request(proposal, id, params) {
  const { family, method } = parseKind(proposal.kind);
  return {
    id,
    kind: `mcp/request${proposal.kind.slice(family.length)}`,
    payload: { jsonrpc: "2.0", id, method, params },
    to: proposal.to,
    context: inside(proposal),
  };
}

const inside = (envelope) => envelope.context && { id: envelope.context.id };
