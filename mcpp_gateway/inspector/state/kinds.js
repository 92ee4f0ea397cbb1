// Parts of a kind: `mcp/request:tools/call:read_file` is a family, a method and a name.

import { parseExactly } from "./json.js";

export const GATEWAY = "system:gateway";

/** Return the parts of a kind; the name as its owner spells it, not percent-encoded (E-15). */
export function parseKind(kind) {
  const [family, ...rest] = kind.split(":");
  return { family, method: rest[0], name: rest.length > 1 ? decodeKind(rest.slice(1).join(":")) : undefined };
}

/** Return a kind as people write it, which is what filters match. */
export function decodeKind(kind) {
  try {
    return kind.includes("%") ? decodeURIComponent(kind) : kind;
  } catch {
    return kind; // the gateway accepts no such kind
  }
}

/** Return whether a text is a kind, and so may be a context's type too (E-15, E-17). */
export const isKind = (text) => /^(?:[!-$&-~]|%[0-9A-F]{2})+$/.test(text) && text.length <= MAX_KIND_LENGTH;

export const MAX_KIND_LENGTH = 512;

// Sent to one participant only and not part of the log, so not a position to resume from.
const DIRECT = new Set(["system/welcome", "system/error", "system/filter", "system/history", "system/replay", "system/card"]);

export const isDirect = (envelope) => DIRECT.has(envelope.kind) && envelope.from === GATEWAY;

// A number that kept its digits (raw JSON) is an object to JavaScript.
export const isObject = (value) =>
  typeof value === "object" && value !== null && !Array.isArray(value) && !JSON.isRawJSON?.(value);

/** Return who joined or left according to a `system/presence`: one, or several of them. */
export const presenceEntries = (payload) =>
  (Array.isArray(payload?.entries) ? payload.entries : [payload]).filter(isObject);

/** Return whether the payload of a request or proposal matches its kind (P-15). */
export function isCoherent({ kind, payload }) {
  if (!isObject(payload)) return false;
  const { method, name } = parseKind(kind);
  const { params = {} } = payload;
  return isObject(params) && payload.method === method && params.name === name;
}

/** Return the envelope in a text, or null if it is not one. */
export function readEnvelope(text) {
  let value;
  try {
    value = parseExactly(text);
  } catch {
    return null;
  }
  return isEnvelope(value) ? value : null;
}

/** Return whether a value is an envelope, and remove its optional members that are null (E-07). */
export function isEnvelope(value) {
  const texts = ["id", "from", "kind", "ts"];
  if (!isObject(value) || !texts.every((name) => typeof value[name] === "string")) return false;
  dropNulls(value, ["to", "correlation_id", "context", "attachments"]);
  if (isObject(value.context)) dropNulls(value.context, ["type", "parent", "metadata"]);
  return true;
}

/** Remove optional members that are null: they count as absent (E-07). */
function dropNulls(value, names) {
  for (const name of names) if (value[name] === null) delete value[name];
}
