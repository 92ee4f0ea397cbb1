// Parts of a kind: `mcp/request:tools/call:read_file` is a family, a method and a name.

import { parseExactly } from "./json.js";

export const GATEWAY = "system:gateway";

export function parseKind(kind) {
  const [family, ...rest] = kind.split(":");
  return { family, method: rest[0], name: rest.length > 1 ? rest.slice(1).join(":") : undefined };
}

// Sent to one participant only and not part of the log, so not a position to resume from.
const DIRECT = new Set(["system/welcome", "system/error", "system/filter"]);

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
  const texts = ["id", "from", "kind", "ts"];
  return isObject(value) && texts.every((name) => typeof value[name] === "string") ? value : null;
}
