// Filters, as in mcpp/filters.py: applied here too, to hide at once what the gateway no longer sends.

import { MAX_KIND_LENGTH, decodeKind, isKind, isObject } from "../kinds.js";

const KEYS = ["main", "type", "context", "kind", "from", "to", "any", "all", "not"];
const MAX_NODES = 64;
const MAX_DEPTH = 8;
const MAX_BYTES = 4096;
export const isId = (text) => /^[A-Za-z0-9._:~-]{1,128}$/.test(text);
const isReference = (text) => /^mcpp:\/\/[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\/[A-Za-z0-9._:~-]{1,128}$/.test(text);
/** Whether a context may have this id, or be the parent of one: also a context of another pod (E-30). */
export const isContext = (text) => isId(text) || isReference(text);
const isParticipant = (text) => /^[A-Za-z0-9._:@-]{1,64}$/.test(text);
// Printable characters and spaces, as Python defines them.
const isKindPattern = (text) => /^(?:[^\p{C}\p{Z}]| )+$/u.test(text) && Array.from(text).length <= MAX_KIND_LENGTH;
const TESTS = { type: isKind, context: isContext, kind: isKindPattern, from: isParticipant, to: isParticipant };

export class FilterError extends Error {}

export const everything = { all: [] };
export const mainOnly = { main: true };
export const conclusions = { all: [{ not: { main: true } }, { kind: "conclusion" }] };
export const withTypes = (types) => ({ any: [{ main: true }, ...types.map((type) => ({ type }))] });
export const inContext = (id, descendants) =>
  descendants ? { context: id, descendants: true } : { context: id };

export const isSame = (one, other) => JSON.stringify(one) === JSON.stringify(other);

/** Return the name of the strategy that a filter is, or null for any other expression. */
export function strategyOf(filter) {
  if (isSame(filter, everything)) return "everything";
  if (isSame(filter, mainOnly)) return "main";
  if (isSame(filter, conclusions)) return "conclusions";
  if (typeof filter.context === "string") return "context";
  const [first, ...rest] = filter.any ?? [];
  if (first && isSame(first, mainOnly) && rest.every((part) => part.type)) return "types";
  return null;
}

/** Validate a filter by the gateway's rules; throw a FilterError that names the invalid part. */
export function check(filter) {
  const count = { nodes: 0 };
  checkPart(filter, "$", 1, count);
  if (new TextEncoder().encode(JSON.stringify(filter)).length > MAX_BYTES) {
    throw new FilterError(`is longer than ${MAX_BYTES} bytes`);
  }
  return filter;
}

function checkPart(value, path, depth, count) {
  const fail = (reason, at = path) => {
    throw new FilterError(at === "$" ? reason : `${at} ${reason}`);
  };
  count.nodes += 1;
  if (count.nodes > MAX_NODES) fail(`is more than ${MAX_NODES} parts`);
  if (depth > MAX_DEPTH) fail(`nests deeper than ${MAX_DEPTH} levels`);
  if (!isObject(value)) fail("must be an object with one key");
  const keys = Object.keys(value).filter((name) => name !== "descendants" || !("context" in value));
  if (keys.length !== 1) fail(`must have exactly one key, one of: ${KEYS.join(", ")}`);
  const [name] = keys;
  const inner = value[name];
  const here = `${path}.${name}`;
  if (name === "main") {
    if (inner !== true) fail('must be true; for the opposite, {"not": {"main": true}}', here);
  } else if (name in TESTS && Object.hasOwn(TESTS, name)) {
    const texts = typeof inner === "string" && TESTS[name](inner);
    if (!texts) fail("is not a text that could match", here);
    if ("descendants" in value && typeof value.descendants !== "boolean") {
      fail("must be true or false", `${path}.descendants`);
    }
  } else if (name === "any" || name === "all") {
    if (!Array.isArray(inner)) fail("must be an array of filters", here);
    inner.forEach((part, i) => checkPart(part, `${here}[${i}]`, depth + 1, count));
  } else if (name === "not") {
    checkPart(inner, here, depth + 1, count);
  } else {
    fail(`has no key '${name.slice(0, 40)}'; one of: ${KEYS.join(", ")}`);
  }
}

/** Return a predicate of an envelope and its lineage (null in the main context). */
export function compile(filter) {
  if (filter.main) return (_, lineage) => lineage === null;
  if (filter.type !== undefined) return (_, lineage) => lineage?.type === filter.type;
  if (filter.context !== undefined) {
    const { context: id, descendants } = filter;
    return (_, lineage) =>
      lineage !== null && (lineage.id === id || (descendants === true && lineage.ancestors.includes(id)));
  }
  if (filter.kind !== undefined) {
    const matches = compileGlob(filter.kind);
    return (envelope) => matches(decodeKind(envelope.kind));
  }
  if (filter.from !== undefined) return (envelope) => envelope.from === filter.from;
  if (filter.to !== undefined) return (envelope) => envelope.to?.includes(filter.to) ?? false;
  if (filter.not !== undefined) {
    const part = compile(filter.not);
    return (envelope, lineage) => !part(envelope, lineage);
  }
  const parts = (filter.any ?? filter.all).map(compile);
  return filter.any
    ? (envelope, lineage) => parts.some((part) => part(envelope, lineage))
    : (envelope, lineage) => parts.every((part) => part(envelope, lineage));
}

/** Compile a glob with `*` only. Matches in linear time by taking the first occurrence of each part. */
function compileGlob(pattern) {
  const [first, ...rest] = pattern.split("*");
  if (!rest.length) return (text) => text === pattern;
  const last = rest.pop();
  return (text) => {
    const end = text.length - last.length;
    let start = first.length;
    if (!text.startsWith(first) || !text.endsWith(last)) return false;
    for (const part of rest) {
      const found = text.indexOf(part, start);
      if (found < 0) return false;
      start = found + part.length;
    }
    return start <= end;
  };
}
