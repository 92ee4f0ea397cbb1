// JSON formatting that keeps the sender's own characters in numbers and keys.

// Characters that reorder or hide adjacent text are shown as escapes.
const HIDDEN = /[\p{Default_Ignorable_Code_Point}\p{Zl}\p{Zp}\p{Cs}\u0000-\u0008\u000b-\u001f\u007f-\u009f\u2800\ufff9-\ufffb]/gu;

export function reveal(text) {
  const escape = (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, "0")}`;
  return text.replace(HIDDEN, (one) => one.split("").map(escape).join(""));
}

const ESCAPES = { n: "\n", r: "\r", t: "\t", b: "\b", f: "\f" };

/** Return a JSON text with its escapes decoded, for searching. */
export function unescaped(text) {
  if (!text.includes("\\")) return text;
  return text.replace(/\\(?:u([0-9a-fA-F]{4})|(.))/g, (_, code, one) =>
    code ? String.fromCharCode(Number.parseInt(code, 16)) : ESCAPES[one] ?? one,
  );
}

/** Indent a JSON text without parsing its values. */
export function indent(text) {
  const out = [];
  let depth = 0;
  let i = 0;
  const line = () => out.push("\n", "  ".repeat(depth));
  while (i < text.length) {
    const character = text[i];
    if (character === '"') {
      const start = i;
      i += 1;
      while (i < text.length && text[i] !== '"') i += text[i] === "\\" ? 2 : 1;
      out.push(text.slice(start, i + 1));
    } else if (character === "{" || character === "[") {
      const close = character === "{" ? "}" : "]";
      const empty = new RegExp(`^\\s*\\${close}`).exec(text.slice(i + 1, i + 64));
      if (empty) {
        out.push(character, close);
        i += empty[0].length;
      } else {
        out.push(character);
        depth += 1;
        line();
      }
    } else if (character === "}" || character === "]") {
      depth -= 1;
      line();
      out.push(character);
    } else if (character === ",") {
      out.push(character);
      line();
    } else if (character === ":") {
      out.push(": ");
    } else if (!/\s/.test(character)) {
      out.push(character);
    }
    i += 1;
  }
  return reveal(out.join(""));
}

/**
 * Parse a JSON text. An integer that JavaScript would round keeps its digits: an approval must match
 * the proposal exactly.
 */
export function parseExactly(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, { source } = {}) =>
    Number.isInteger(value) && !Number.isSafeInteger(value) && /^-?\d+$/.test(source ?? "")
      ? JSON.rawJSON?.(source) ?? source // a string fulfils nothing; a rounded number would be executed
      : value,
  );
}

/** Return whether an object in a JSON text has a duplicate key, of which parsers keep only one. */
export function hasDuplicateKeys(text) {
  const strings = text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?/g);
  const written = [...strings].filter(([, colon]) => colon).length;
  const count = (value) =>
    typeof value !== "object" || value === null
      ? 0
      : Object.values(value).reduce((sum, one) => sum + count(one), Array.isArray(value) ? 0 : Object.keys(value).length);
  return written !== count(JSON.parse(text));
}

/** Return a value on one line if it is short, else indented. */
export function show(value) {
  const short = JSON.stringify(value, null, 1)?.replace(/\n\s*/g, " ") ?? "";
  return reveal(short.length <= 96 ? short : JSON.stringify(value, null, 2));
}

/** Return a form of a value that compares equal regardless of key order. */
export function canonical(value) {
  if (Array.isArray(value)) return ["list", ...value.map(canonical)];
  if (typeof value !== "object" || value === null) return value;
  return Object.keys(value)
    .sort()
    .map((name) => [name, canonical(value[name])]);
}

/** Return the texts of a member of each object in a list, as written; `path` leads to the list. */
export function sourcesOf(text, path, name) {
  let start = skipSpace(text, 0);
  for (const step of path) {
    start = memberOf(text, start, step)?.[0];
    if (start === undefined) return [];
  }
  if (text[start] !== "[") return [];
  return parts(text, start).map(([at]) => {
    const found = memberOf(text, at, name);
    return found && text.slice(...found);
  });
}

// Return the range of an object's member; the last one counts, as for every parser.
function memberOf(text, start, name) {
  if (text[start] !== "{") return undefined;
  let found;
  for (const [at, end] of parts(text, start)) {
    const key = text.slice(at, endOf(text, at));
    if (key !== JSON.stringify(name)) continue;
    const value = skipSpace(text, text.indexOf(":", at + key.length) + 1);
    found = [value, end];
  }
  return found;
}

// Return the ranges of the elements of a list, or of the members of an object with their names.
function parts(text, start) {
  const found = [];
  let at = skipSpace(text, start + 1);
  while (at < text.length && text[at] !== "]" && text[at] !== "}") {
    let end = endOf(text, at);
    const colon = skipSpace(text, end);
    if (text[colon] === ":") end = endOf(text, skipSpace(text, colon + 1));
    found.push([at, end]);
    at = skipSpace(text, end);
    if (text[at] === ",") at = skipSpace(text, at + 1);
  }
  return found;
}

function skipSpace(text, start) {
  let at = start;
  while (" \t\r\n".includes(text[at] ?? "x")) at += 1;
  return at;
}

// Return where the value that begins at an index ends.
function endOf(text, start) {
  if (text[start] === '"') return endOfString(text, start);
  const mark = /["{}[\],\s]/g;
  let depth = 0;
  mark.lastIndex = start;
  for (let found = mark.exec(text); found; found = mark.exec(text)) {
    const [one] = found;
    if (one === '"') mark.lastIndex = endOfString(text, found.index);
    else if (one === "{" || one === "[") depth += 1;
    else if (depth === 0) return found.index;
    else if ((one === "}" || one === "]") && (depth -= 1) === 0) return found.index + 1;
  }
  return text.length;
}

function endOfString(text, start) {
  let at = start;
  let slashes;
  do {
    at = text.indexOf('"', at + 1);
    if (at < 0) return text.length;
    slashes = 0;
    while (text[at - 1 - slashes] === "\\") slashes += 1;
  } while (slashes % 2);
  return at + 1;
}
