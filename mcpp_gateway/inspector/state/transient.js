// The life of transient results, folded from the log: mcpp/transient/tracker.py in another language.
// The rules' numbers are those of spec/transient.md.

import { canonical } from "./json.js";
import { isObject, parseKind } from "./kinds.js";
import { cut, isTruthy, summarize } from "./summaries.js";

const MECHANICAL = [
  "mcp/response",
  "mcp/notification",
  "reflection",
  "mcp/proposal",
  "mcp/withdraw",
  "pod/",
  "system/",
  ...["initialize", "ping", "tools/list", "resources/list", "prompts/list"].map(
    (method) => `mcp/request:${method}`,
  ),
];

const MAX_FETCHERS = 64; // T-11: every consumption looks at each of them

export class Tracker {
  constructor() {
    this._length = 0;
    this._calls = new Map(); // by the request's id
    this._tracked = new Map(); // by the call's id
    this._byResponse = new Map();
    this._consumers = new Set();
    this._pairs = new Map(); // server, consumer → fetchers
    this._pending = new Map();
    this._copies = new Map();
    this._lastSent = new Map();
    this._unshown = new Map(); // caller → results that collapse once it has said something
  }

  /** Learn from the next envelope; return the ids of responses that now look different. */
  add(envelope) {
    const index = this._length;
    this._length += 1;
    const changed = [];
    if (!MECHANICAL.some((prefix) => envelope.kind.startsWith(prefix))) {
      this._lastSent.set(envelope.from, index);
      const shown = this._unshown.get(envelope.from);
      if (shown) {
        changed.push(...shown);
        this._unshown.delete(envelope.from);
      }
    }
    const call = this._pairUp(envelope, index);
    if (!call || call.response !== envelope || call.isError) return changed; // T-07, T-08
    for (const hint of readHints(call.result)) {
      // T-11: keyed by who declares it, so nobody pairs the tools of another.
      if (call.server !== null) {
        const fetchers = upsert(this._pairs, key(call.server, hint.consumedBy), () => new Set());
        if (fetchers.size < MAX_FETCHERS) fetchers.add(hint.tool);
      }
    }
    const mark = readMark(call.result);
    const settled = mark.consumed ? this._consume(call, mark) : [];
    if (mark.transient) settled.push(...this._track(call, mark));
    for (const tracked of settled) {
      changed.push(tracked.call.response.id);
      if (!this._isShown(tracked)) {
        upsert(this._unshown, tracked.call.caller, () => []).push(tracked.call.response.id);
      }
    }
    return changed;
  }

  /** Return the call that a request began or a response settled. */
  call(envelope) {
    const call = this._calls.get(envelope.id) ?? this._calls.get(envelope.correlation_id);
    return call && (call.request === envelope || call.response === envelope) ? call : undefined;
  }

  /** Keep of an envelope that is no longer loaded only what others are judged by, not what it says. */
  forget(envelope) {
    const call = this.call(envelope);
    if (!call) return;
    const { id, to } = envelope;
    if (call.request === envelope) {
      call.request = { id, to };
      return;
    }
    const tracked = this._byResponse.get(id);
    if (tracked && this._copies.get(questionOf(call)) === tracked) this._copies.delete(questionOf(call));
    Object.assign(call, { response: { id }, result: null, arguments: null });
  }

  /** Return what to show beside a response (T-19). */
  badges(responseId) {
    const found = [];
    const tracked = this._byResponse.get(responseId);
    if (tracked) found.push(this._isCollapsed(tracked) ? "collapsed" : "transient");
    if (this._consumers.has(responseId)) found.push("consumed");
    return found;
  }

  /** Return the line that stands for a collapsed response, or null if it is shown whole. */
  summary(responseId) {
    const tracked = this._byResponse.get(responseId);
    if (!tracked || !this._isCollapsed(tracked)) return null;
    return cut(tracked.mark.summary ?? "") || summarize(tracked.call.result);
  }

  _isCollapsed(tracked) {
    return tracked.state !== "pending" && this._isShown(tracked);
  }

  _isShown(tracked) {
    // T-06: a summary in place of what was never read is a lost answer.
    return (this._lastSent.get(tracked.call.caller) ?? -1) > tracked.call.answeredAt;
  }

  _pairUp(envelope, index) {
    const { family, method, name } = parseKind(envelope.kind);
    if (method !== "tools/call") return null;
    if (family === "mcp/request") return this._ask(envelope, index, name);
    return family === "mcp/response" ? this._answer(envelope, index) : null;
  }

  _ask(request, index, name) {
    if (this._calls.has(request.id)) return null;
    const params = isObject(request.payload?.params) ? request.payload.params : {};
    const { to } = request;
    const call = {
      request,
      index,
      tool: name || (typeof params.name === "string" ? params.name : ""),
      arguments: isObject(params.arguments) ? params.arguments : {},
      caller: request.from,
      contextId: request.context?.id ?? null,
      server: to?.length === 1 ? to[0] : null,
      response: null,
      answeredAt: -1,
    };
    this._calls.set(request.id, call);
    return call;
  }

  _answer(response, index) {
    const call = this._calls.get(response.correlation_id);
    // T-10, T-13: the first answer of whom it was addressed to counts, and no other.
    if (!call || call.response || !call.request.to?.includes(response.from)) return null;
    call.response = response;
    call.answeredAt = index;
    call.result = readResult(response.payload);
    call.isError = isTruthy(call.result.isError);
    return call;
  }

  _track(call, mark) {
    const tracked = { call, mark, state: "pending" };
    this._tracked.set(call.request.id, tracked);
    this._byResponse.set(call.response.id, tracked);
    upsert(this._pending, queueOf(call, call.tool), () => []).push(tracked);
    const question = questionOf(call);
    const older = this._copies.get(question);
    this._copies.set(question, tracked);
    // T-14: the newer copy says all that the older did.
    if (older?.state !== "pending") return [];
    older.state = "superseded";
    return [older];
  }

  _consume(call, mark) {
    let found;
    if (mark.consumes) {
      const named = mark.consumes.map((id) => this._tracked.get(id) ?? this._byResponse.get(id));
      found = [...new Set(named)].filter(
        (tracked) =>
          tracked?.state === "pending" &&
          tracked.call.caller === call.caller &&
          tracked.call.answeredAt < call.index,
      );
    } else {
      const oldest = this._oldest(call);
      found = oldest ? [oldest] : [];
    }
    if (found.length) this._consumers.add(call.response.id);
    for (const tracked of found) tracked.state = "consumed";
    return found;
  }

  _oldest(call) {
    let oldest = null;
    for (const tool of this._pairs.get(key(call.server ?? "", call.tool)) ?? []) {
      const pending = this._pending.get(queueOf(call, tool)) ?? [];
      while (pending.length && pending[0].state !== "pending") pending.shift();
      const front = pending[0];
      if (!front || front.call.answeredAt >= call.index) continue;
      if (!oldest || front.call.answeredAt < oldest.call.answeredAt) oldest = front;
    }
    return oldest;
  }
}

function readMark(result) {
  const context = readMeta(result, "context");
  if (!isObject(context)) return { transient: false, consumed: false };
  return {
    transient: context.lifecycle === "transient",
    summary: typeof context.summary === "string" ? context.summary : undefined,
    consumed: context.consumed === true,
    consumes: Array.isArray(context.consumes)
      ? context.consumes.filter((id) => typeof id === "string")
      : undefined,
  };
}

function readHints(result) {
  const hints = readMeta(result, "contextHints");
  return (Array.isArray(hints) ? hints : []).filter(
    (hint) =>
      isObject(hint) &&
      hint.lifecycle === "transient" &&
      typeof hint.tool === "string" &&
      typeof hint.consumedBy === "string",
  );
}

/** Return the tool result in a response's payload; anything else reads as a failed call. */
export function readResult(payload) {
  if (isObject(payload)) {
    if (payload.error !== undefined && payload.error !== null) {
      const message = isObject(payload.error) ? payload.error.message : payload.error;
      return failure(typeof message === "string" ? message : JSON.stringify(payload.error));
    }
    if (isObject(payload.result)) return payload.result;
  }
  return failure("The response does not contain a tool result.");
}

function failure(text) {
  return { content: [{ type: "text", text: text || "The call failed." }], isError: true };
}

function readMeta(result, name) {
  if (!isObject(result._meta)) return undefined;
  // T-01: ours first, since the bare word may be another protocol's.
  const own = Object.hasOwn(result._meta, `mcpp/${name}`);
  return own ? result._meta[`mcpp/${name}`] : result._meta[name];
}

const key = (...parts) => JSON.stringify(parts);

const questionOf = (call) => key(queueOf(call, call.tool), canonical(call.arguments));

const queueOf = (call, tool) => key(call.caller, call.contextId, call.server, tool);

function upsert(map, name, make) {
  if (!map.has(name)) map.set(name, make());
  return map.get(name);
}
