// Proposals: what was asked for, by whom, and what became of it (P-20, P-21).

import { canonical, hasDuplicateKeys } from "./json.js";
import { isCoherent, isObject, parseKind } from "./kinds.js";
import { cut } from "./summaries.js";

export class Proposals {
  constructor() {
    this._all = new Map();
    this._made = 0;
    this._byRequest = new Map(); // by the id of the request that fulfilled it
  }

  get(id) {
    return this._all.get(id);
  }

  /** Return the proposal that has this id and text; another may have the id by now. */
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

  /** The gateway has lost its log, and with it what nobody has decided; return whose ids. */
  lose() {
    const lost = this.open;
    for (const proposal of lost) proposal.state = "lost";
    return lost.map(({ envelope }) => envelope.id);
  }

  /** Something is missing: what waits may have been decided there; return whose ids. */
  doubt() {
    const doubtful = this.open;
    for (const proposal of doubtful) proposal.isDoubtful = true;
    return doubtful.map(({ envelope }) => envelope.id);
  }

  /** Let go of a proposal that is no longer loaded, unless it still waits for a decision. */
  forget(envelope) {
    const proposal = this._all.get(envelope.id);
    if (proposal?.envelope !== envelope || proposal.state === "open") return;
    this._all.delete(envelope.id);
    this._byRequest.delete(proposal.request);
  }

  /** Learn from the next envelope; return the id of the proposal that it changed, if one. */
  add(envelope, text) {
    const { family } = parseKind(envelope.kind);
    if (family === "mcp/proposal") {
      // P-15: whoever judges it by its kind would make a request for something else.
      if (!isCoherent(envelope) || envelope.to?.length !== 1) return undefined;
      const isAmbiguous = hasDuplicateKeys(text);
      const number = this._made++; // an id may come back: the number tells them apart
      const proposal = { envelope, text, number, state: "open", by: undefined, rejections: [], isAmbiguous, isDoubtful: false };
      this._all.delete(envelope.id); // the newest stands last
      this._all.set(envelope.id, proposal);
      return envelope.id;
    }
    if (family === "mcp/response") return this._answered(envelope);
    const proposal = this._all.get(envelope.correlation_id);
    if (!proposal) return undefined;
    // What was decided while the gateway restarted is sent all the same.
    const isOpen = proposal.state === "open" || proposal.state === "lost";
    if (isOpen && fulfils(envelope, proposal.envelope)) {
      proposal.state = "fulfilled";
      proposal.by = envelope.from;
      proposal.request = envelope.id;
      this._byRequest.set(envelope.id, proposal);
    } else if (family === "mcp/withdraw" && isOpen && envelope.from === proposal.envelope.from) {
      proposal.state = "withdrawn";
    } else if (family === "mcp/reject") {
      // The last of each, for one may say it a thousand times.
      const others = proposal.rejections.filter(({ from }) => from !== envelope.from);
      proposal.rejections = [...others, { from: envelope.from, reason: reasonOf(envelope.payload) }];
    } else {
      return undefined;
    }
    return proposal.envelope.id;
  }

  // Somebody was first of whom a filter told us nothing: the owner, who saw all, says so (P-20).
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
    request.payload.id === request.id &&
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

/** Return what a proposal asks for: a tool, or a method. */
export function nameOf({ envelope }) {
  const { method, name } = parseKind(envelope.kind);
  return name ?? method ?? envelope.kind;
}

/** Return the request that fulfils a proposal. */
export function approval({ envelope }, id) {
  return { ...request(envelope, id, envelope.payload.params ?? {}), correlation_id: envelope.id };
}

/**
 * Return what a person sends who wants it done otherwise. A changed request fulfils nothing (P-20):
 * it is made in the person's own name, and once it is, the proposer is told why theirs will not be.
 */
export function amendment(proposal, id, params) {
  const then = rejection(proposal, "edited", `asked for with other arguments in ${id}`);
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
  const { method, name } = parseKind(proposal.kind);
  return {
    id,
    kind: ["mcp/request", method, name].filter((part) => part !== undefined).join(":"),
    payload: { jsonrpc: "2.0", id, method, params },
    to: proposal.to,
    context: inside(proposal),
  };
}

const inside = (envelope) => envelope.context && { id: envelope.context.id };
