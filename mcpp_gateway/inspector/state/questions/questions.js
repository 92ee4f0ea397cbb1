// Questions that participants put to the user: requests for an elicitation (P-61).

import { isCoherent, isObject, parseKind } from "../kinds.js";

const MAX_OPEN = 50;
const METHOD = "elicitation/create";
const CANCELLED = "mcp/notification:notifications/cancelled";

export class Questions {
  constructor() {
    this._open = new Map(); // by the id of the request, the oldest first
  }

  get open() {
    return [...this._open.values()];
  }

  get(id) {
    return this._open.get(id);
  }

  /** Process the next envelope of the log. */
  add(envelope, me) {
    const { family, method } = parseKind(envelope.kind);
    if (family === "mcp/request" && method === METHOD) {
      const isAlone = envelope.to?.length === 1 && envelope.to[0] === me;
      if (!isAlone || envelope.from === me || !isCoherent(envelope)) return;
      this._open.set(envelope.id, { envelope, ...read(envelope.payload.params) });
      if (this._open.size > MAX_OPEN) this._open.delete(this._open.keys().next().value);
      return;
    }
    const question = this._open.get(envelope.correlation_id);
    if (!question) return;
    const isAnswered = family === "mcp/response" && envelope.from === me;
    const isCancelled = envelope.kind === CANCELLED && envelope.from === question.envelope.from;
    if (isAnswered || isCancelled) this._open.delete(envelope.correlation_id);
  }

  /** Forget the questions of participants that are gone, or all of them. */
  forget(from) {
    for (const [id, { envelope }] of this._open) if (from === undefined || envelope.from === from) this._open.delete(id);
  }
}

function read(params = {}) {
  const { message, mode, url, requestedSchema } = params;
  return {
    message: typeof message === "string" ? message : "",
    url: mode === "url" && typeof url === "string" ? url : undefined,
    schema: isObject(requestedSchema) ? requestedSchema : {},
  };
}

/** Return the response to a question: `action` is accept, decline or cancel. */
export function answer({ envelope }, action, content) {
  return {
    kind: `mcp/response:${METHOD}`,
    payload: {
      jsonrpc: "2.0",
      id: envelope.payload.id ?? envelope.id,
      result: content === undefined ? { action } : { action, content },
    },
    to: [envelope.from],
    correlation_id: envelope.id,
    context: envelope.context && { id: envelope.context.id },
  };
}
