// Tracks the lifecycle of transient results, as mcpp/transient/tracker.py and collapsing/lifecycle.py
// do. Rule numbers refer to spec/transient.md.

import { canonical } from "../json.js";
import { isObject, parseKind } from "../kinds.js";
import { cut, isTruthy, summarize } from "./summaries.js";

const AUTOMATIC = [
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
    this._paired = new Set(); // server, fetcher
    this._pending = new Map(); // caller, context → server, tool → queue
    this._copies = new Map();
    this._lastSent = new Map();
    this._unshown = new Map(); // caller → results that collapse after its next message
  }

  /** Process the next envelope; return the ids of responses to redraw. */
  add(envelope) {
    const index = this._length;
    this._length += 1;
    const changed = [];
    if (!AUTOMATIC.some((prefix) => envelope.kind.startsWith(prefix))) {
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
      // T-11: keyed by the declaring server, so that no server can pair another's tools.
      const fetchers = upsert(this._pairs, key(call.server, hint.consumedBy), () => new Set());
      if (fetchers.size < MAX_FETCHERS) {
        fetchers.add(hint.tool);
        this._paired.add(key(call.server, hint.tool));
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

  /** Return the call that a request made or a response answered. */
  call(envelope) {
    const call = this._calls.get(envelope.id) ?? this._calls.get(envelope.correlation_id);
    return call && (call.request === envelope || call.response === envelope) ? call : undefined;
  }

  /** Drop the content of an envelope that is no longer loaded; keep what later envelopes depend on. */
  forget(envelope) {
    const call = this.call(envelope);
    if (!call) return;
    const { id, to } = envelope;
    if (call.request === envelope) {
      call.request = { id, to };
      return;
    }
    const tracked = this._byResponse.get(id);
    if (tracked && this._copies.get(deduplicationKey(call)) === tracked) this._copies.delete(deduplicationKey(call));
    Object.assign(call, { response: { id }, result: null, arguments: null });
  }

  /** Return the badges of a response (T-19). */
  badges(responseId) {
    const found = [];
    const tracked = this._byResponse.get(responseId);
    if (tracked) found.push(this._isCollapsed(tracked) ? "collapsed" : "transient");
    if (this._consumers.has(responseId)) found.push("consumed");
    return found;
  }

  /** Return the summary of a collapsed response, or null if it is not collapsed. */
  summary(responseId) {
    const tracked = this._byResponse.get(responseId);
    if (!tracked || !this._isCollapsed(tracked)) return null;
    return cut(tracked.mark.summary ?? "") || summarize(tracked.call.result);
  }

  _isCollapsed(tracked) {
    return tracked.state !== "pending" && this._isShown(tracked);
  }

  _isShown(tracked) {
    // T-06: a result must not collapse before its caller has read it.
    return (this._lastSent.get(tracked.call.caller) ?? -1) > tracked.call.answeredAt;
  }

  _pairUp(envelope, index) {
    const { family, method, name } = parseKind(envelope.kind);
    if (method !== "tools/call") return null;
    if (family === "mcp/request") return this._addRequest(envelope, index, name);
    return family === "mcp/response" ? this._addResponse(envelope, index) : null;
  }

  _addRequest(request, index, name) {
    if (this._calls.has(request.id)) return null;
    const params = isObject(request.payload?.params) ? request.payload.params : {};
    const call = {
      request,
      index,
      tool: name || (typeof params.name === "string" ? params.name : ""),
      arguments: isObject(params.arguments) ? params.arguments : {},
      caller: request.from,
      contextId: request.context?.id ?? null,
      server: null, // the participant that answers
      response: null,
      answeredAt: -1,
    };
    this._calls.set(request.id, call);
    return call;
  }

  _addResponse(response, index) {
    const call = this._calls.get(response.correlation_id);
    // T-10, T-13: only the first response from a recipient of the request counts.
    if (!call || call.response || !call.request.to?.includes(response.from)) return null;
    call.response = response;
    call.server = response.from;
    call.answeredAt = index;
    call.result = readResult(response.payload);
    call.isError = isTruthy(call.result.isError);
    return call;
  }

  _track(call, mark) {
    const tracked = { call, mark, state: "pending" };
    this._tracked.set(call.request.id, tracked);
    this._byResponse.set(call.response.id, tracked);
    const queues = upsert(this._pending, placeOf(call), () => new Map());
    upsert(queues, key(call.server, call.tool), () => []).push(tracked);
    const deduplicated = deduplicationKey(call);
    const older = this._copies.get(deduplicated);
    this._copies.set(deduplicated, tracked);
    // T-14: the newer copy replaces the older one.
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
          [call.server, call.caller].includes(tracked.call.server) &&
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
    const queues = this._pending.get(placeOf(call));
    if (!queues) return null;
    for (const [name, queue] of queues) {
      while (queue.length && queue[0].state !== "pending") queue.shift();
      if (!queue.length) queues.delete(name);
    }
    const fetchers = this._pairs.get(key(call.server, call.tool));
    const names = fetchers?.size
      ? [...fetchers].map((tool) => key(call.server, tool))
      : this._fromOnlyServer(call, queues);
    let oldest = null;
    for (const name of names) {
      const front = queues.get(name)?.[0];
      if (!front || front.call.answeredAt >= call.index) continue;
      if (!oldest || front.call.answeredAt < oldest.call.answeredAt) oldest = front;
    }
    return oldest;
  }

  // T-12: the queues of a consumer that no hint names.
  _fromOnlyServer(call, queues) {
    const others = [...queues].filter(([, [front]]) => front.call.server !== call.caller);
    const isOnly = others.every(([, [front]]) => front.call.server === call.server);
    if (!isOnly || others.length > MAX_FETCHERS) return [];
    return others.map(([name]) => name).filter((name) => !this._paired.has(name));
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

/** Return the tool result in a response's payload; anything else becomes a failed call. */
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
  // T-01: the prefixed name first, since the bare one may belong to another protocol.
  const own = Object.hasOwn(result._meta, `mcpp/${name}`);
  return own ? result._meta[`mcpp/${name}`] : result._meta[name];
}

const key = (...parts) => JSON.stringify(parts);

const deduplicationKey = (call) =>
  key(placeOf(call), call.server, call.tool, canonical(call.arguments));

const placeOf = (call) => key(call.caller, call.contextId);

function upsert(map, name, make) {
  if (!map.has(name)) map.set(name, make());
  return map.get(name);
}
