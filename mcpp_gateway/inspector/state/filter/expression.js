// Filter expressions, such as:  main or kind:mcp/* and not from:noisy
//
//   everything  nothing  main  type:T  context:ID  context:ID+ (with descendants)
//   kind:GLOB  from:NAME  to:NAME  not X  X and Y  X or Y  ( … )
//
// `and` binds more tightly than `or`. The protocol's JSON form is accepted as well.

import { FilterError, check, everything } from "./filter.js";

export const VALUED = ["type", "context", "kind", "from", "to"];
const WORDS = ["everything", "nothing", "main", "not", "and", "or"];
const MAX_DEPTH = 64; // deeper than any valid filter; a link must not exhaust the stack
const SYMBOLS = { "&": "and", "|": "or", "~": "not", "!": "not" };

/** A syntax error in an expression, and its position. */
export class ExpressionError extends Error {
  constructor(message, position) {
    super(message);
    this.position = position;
  }
}

/** Return the filter for an expression; an empty expression passes everything. */
export function parse(text) {
  if (/^\s*$/.test(text)) return everything;
  const filter = /^\s*\{/.test(text) ? parseJson(text) : new Parser(text).parse();
  try {
    return check(filter);
  } catch (error) {
    if (error instanceof FilterError) throw new ExpressionError(`The filter ${error.message}`, 0);
    throw error;
  }
}

/** Return a filter as an expression that `parse` reads back with the same meaning. */
export function print(filter, outer = 0) {
  if (filter.main) return "main";
  for (const name of VALUED) {
    if (filter[name] === undefined) continue;
    const more = filter.descendants ? "+" : "";
    const plain = /^[^\s()"&|]+$/.test(filter[name]) && !(name === "kind" && /\+$/.test(filter[name]));
    return `${name}:${plain ? filter[name] : JSON.stringify(filter[name])}${more}`;
  }
  if (filter.not) return `not ${print(filter.not, 3)}`;
  const parts = filter.any ?? filter.all;
  if (!parts.length) return filter.any ? "nothing" : "everything";
  if (parts.length === 1) return print(parts[0], outer);
  const [word, level] = filter.any ? ["or", 1] : ["and", 2];
  const text = parts.map((part) => print(part, level)).join(` ${word} `);
  return outer >= level && outer ? `(${text})` : text;
}

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ExpressionError("Invalid JSON", 0);
  }
}

class Parser {
  constructor(text) {
    this._tokens = tokenize(text);
    this._at = 0;
    this._depth = 0;
  }

  parse() {
    const filter = this._any();
    const left = this._peek();
    if (left.type === ")") throw new ExpressionError("Unmatched )", left.start);
    if (left.type !== "end") throw new ExpressionError("Expected “and” or “or” here", left.start);
    return filter;
  }

  _any() {
    return this._list("or", "any", () => this._all());
  }

  _all() {
    return this._list("and", "all", () => this._one());
  }

  _list(word, name, next) {
    const parts = [next()];
    while (this._peek().type === word) {
      this._at += 1;
      parts.push(next());
    }
    return parts.length === 1 ? parts[0] : { [name]: parts };
  }

  _one() {
    const token = this._peek();
    this._at += 1;
    switch (token.type) {
      case "not":
        return { not: this._inner(token, () => this._one()) };
      case "(": {
        const inner = this._inner(token, () => this._any());
        if (this._peek().type !== ")") throw new ExpressionError("Unclosed (", token.start);
        this._at += 1;
        return inner;
      }
      case "everything":
        return { all: [] };
      case "nothing":
        return { any: [] };
      case "main":
        return { main: true };
      case "pair":
        return token.filter;
      case "end":
        throw new ExpressionError("Unexpected end of the expression", token.start);
      default:
        throw new ExpressionError(`Expected a condition instead of “${token.type}”`, token.start);
    }
  }

  _inner({ start }, read) {
    this._depth += 1;
    if (this._depth > MAX_DEPTH) throw new ExpressionError("Nested too deeply", start);
    const inner = read();
    this._depth -= 1;
    return inner;
  }

  _peek() {
    return this._tokens[this._at];
  }
}

function tokenize(text) {
  const tokens = [];
  const pattern = /\s*(?:([()&|]|[~!](?=\s*[\w(~!]))|([A-Za-z]+):("(?:[^"\\]|\\.)*"|[^\s()&|]*)(\+?)|([^\s()&|:]+))/guy;
  let position = 0;
  while (position < text.trimEnd().length) {
    pattern.lastIndex = position;
    const found = pattern.exec(text);
    if (!found) throw new ExpressionError("Unexpected character", position);
    const start = pattern.lastIndex - found[0].trimStart().length;
    position = pattern.lastIndex;
    const [, symbol, name, value, plus, word] = found;
    if (symbol) tokens.push({ type: SYMBOLS[symbol] ?? symbol, start });
    else if (name) tokens.push({ type: "pair", start, filter: pair(name, value, plus, start) });
    else if (WORDS.includes(word.toLowerCase())) tokens.push({ type: word.toLowerCase(), start });
    else throw unknownWord(word, start);
  }
  tokens.push({ type: "end", start: text.length });
  return tokens;
}

function pair(name, written, plus, start) {
  const known = name.toLowerCase();
  if (!VALUED.includes(known)) throw unknownWord(name, start);
  let value = written;
  let descendants = plus === "+";
  if (written.startsWith('"')) {
    try {
      value = JSON.parse(written);
    } catch {
      throw new ExpressionError("Invalid quoted string", start + name.length + 1);
    }
  } else if (known === "context" && written.endsWith("+")) {
    value = written.slice(0, -1);
    descendants = true;
  }
  if (!value) throw new ExpressionError(`${known}: needs a value`, start + name.length + 1);
  if (!descendants) return { [known]: value };
  if (known !== "context") throw new ExpressionError("“+” (descendants) is allowed only after context:", start);
  return { context: value, descendants: true };
}

function unknownWord(word, start) {
  const expected = [...WORDS, ...VALUED.map((name) => `${name}:…`)].join(", ");
  return new ExpressionError(`Unknown word “${word.slice(0, 40)}”; expected one of ${expected}`, start);
}

/** Return the completions at the cursor: the range to replace, and the options. */
export function complete(text, cursor, known) {
  const before = text.slice(0, cursor);
  const [, part] = /([^\s()&|]*)$/.exec(before);
  const [, name, value] = /^([A-Za-z]+):"?(.*)$/.exec(part) ?? [];
  const start = cursor - part.length;
  let options;
  if (name && VALUED.includes(name.toLowerCase())) {
    const low = value.toLowerCase();
    options = (known[name.toLowerCase()] ?? [])
      .filter((option) => option.toLowerCase().includes(low))
      .map((option) => print({ [name.toLowerCase()]: option }));
  } else {
    const complete = /(?:^|[\s(&|])(?:main|everything|nothing|\w+:\S+|\))\s+$/i.test(before.slice(0, start));
    const words = complete
      ? ["and", "or"]
      : ["main", "not", "everything", "nothing", ...VALUED.map((one) => `${one}:`)];
    options = words.filter((word) => word.startsWith(part.toLowerCase()));
  }
  return { start, end: cursor, options: options.filter((option) => option !== part).slice(0, 12) };
}
