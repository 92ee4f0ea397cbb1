// Requests for pages of the pod's history, and their answers.

import { sourcesOf } from "../json.js";
import { isEnvelope, isObject } from "../kinds.js";

export class Requests {
  constructor(newId) {
    this._newId = newId;
    this._waiting = new Map(); // by id: {accept, refuse}
  }

  /** Return the draft of a request. `accept(page)` or `refuse(reason)` is called once, or neither after a drop. */
  ask(payload, { accept, refuse }) {
    const id = this._newId();
    this._waiting.set(id, { accept, refuse });
    return { id, kind: "pod/history", payload };
  }

  /** Forget all requests, because the connection that they were sent on is gone. */
  drop() {
    this._waiting.clear();
  }

  /** Process a page, which arrived as this text. */
  answer({ correlation_id, payload }, text) {
    this._take(correlation_id)?.accept(readPage(payload, text));
  }

  /** Process a refusal; return whether it was about one of these requests. */
  refuse({ correlation_id, payload }) {
    const request = this._take(correlation_id);
    const reason = isObject(payload) ? payload : {};
    request?.refuse({ code: reason.error, member: reason.member, message: String(reason.message ?? reason.error) });
    return request !== undefined;
  }

  _take(id) {
    const request = this._waiting.get(id);
    this._waiting.delete(id);
    return request;
  }
}

/** Return {entries, next, epoch, start, end, indexedTo}; each entry has its envelope also as the text that its sender wrote. */
export function readPage(payload, text) {
  const { entries, next, epoch, start, end, indexed_to: indexedTo } = isObject(payload) ? payload : {};
  const list = Array.isArray(entries) ? entries : [];
  const texts = sourcesOf(text, ["payload", "entries"], "envelope");
  const read = list.map((entry, i) => ({ ...entry, text: texts[i] ?? "" }));
  const positions = { start: Number(start) || 0, end: Number(end) || 0, indexedTo: Number(indexedTo) || 0 };
  return { entries: read.filter(isEntry), next: typeof next === "string" ? next : null, epoch, ...positions };
}

const isEntry = ({ position, time, envelope }) =>
  Number.isSafeInteger(position) && Number.isFinite(time) && isEnvelope(envelope);
