// Searches, such as:  refund "purchase order" from:analyst not kind:mcp/* since:10:00
//
//   word  "a phrase"  prefix*  text:"…"      what the text contains, all of it
//   since:MOMENT  until:MOMENT                when the gateway received it
//   type:T  context:ID  kind:GLOB  from:NAME  to:NAME  ( … )     conditions of the filter field; all of them
//
// The gateway searches all of the log. What is received is searched here, by the same rules (H-07).

import { FilterError, check, compile, everything } from "../filter/filter.js";
import { ExpressionError, VALUED, parse } from "../filter/expression.js";
import { unescaped } from "../json.js";
import { readMoment } from "./moments.js";
import { fold, readTerm } from "./words.js";

const TOKEN = /\s*(not\s+)?(?:([A-Za-z]+):("(?:[^"\\]|\\.)*"?|\S*)|("[^"]*"?)|(\()|(\S+))/iy;
const NAMES = new Set([...VALUED, "text", "since", "until"]);

export class Search {
  constructor({ text, terms, filter, since, until }) {
    this.text = text; // as the gateway searches it
    this.terms = terms; // what to find and to highlight
    this.filter = filter;
    this.since = since; // seconds, or null
    this.until = until;
    this._test = compile(filter);
  }

  /** Return whether a loaded entry matches. */
  matches({ envelope, lineage, at, text, direct }) {
    if (direct || !this._test(envelope, lineage)) return false;
    if ((this.since !== null && at < this.since * 1000) || (this.until !== null && at >= this.until * 1000)) return false;
    if (!this.terms.length) return true;
    // The raw text first: it decides most cases, and ten times as fast.
    const raw = fold(unescaped(text));
    if (!this.terms.every(({ longest }) => raw.includes(longest))) return false;
    const title = envelope.context?.metadata?.title;
    const texts = textsIn(typeof title === "string" ? [title, envelope.payload] : envelope.payload).map(fold);
    return this.terms.every((term) => texts.some((one) => term.isIn(one)));
  }
}

// Return the strings and whole numbers in a value, which the gateway searches (H-07).
function textsIn(value) {
  if (typeof value === "string" || Number.isInteger(value)) return [String(value)];
  if (typeof value !== "object" || value === null) return [];
  return JSON.isRawJSON?.(value) ? [value.rawJSON] : Object.values(value).flatMap(textsIn);
}

/** Return the search for a text, null for an empty one; throw an ExpressionError for an invalid one. */
export function readSearch(text, now) {
  const words = [];
  const filters = [];
  const bounds = { since: null, until: null };
  for (const { start, not, name, value, filter, word, isQuoted = false } of tokens(text)) {
    if (filter) filters.push(not ? { not: filter } : filter);
    else if (name === "since" || name === "until") bounds[name] = moment(name, value, start, now);
    else words.push({ word: word ?? value, isQuoted });
  }
  const said = words.filter(({ word }) => /[\p{L}\p{N}]/u.test(word));
  if (!said.length && !filters.length && bounds.since === null && bounds.until === null) return null;
  const written = said.map((one, i) => write(one, i === said.length - 1));
  const terms = written.map(readTerm).filter((term) => term !== null);
  const filter = filters.length > 1 ? { all: filters } : filters[0] ?? everything;
  try {
    check(filter);
  } catch (error) {
    if (error instanceof FilterError) throw new ExpressionError(`The filter ${error.message}`, 0);
    throw error;
  }
  return new Search({ text: written.join(" "), terms, filter, ...bounds });
}

function* tokens(text) {
  let position = 0;
  while (/\S/.test(text.slice(position))) {
    TOKEN.lastIndex = position;
    const [all, negation, name, value, quoted, bracket, word] = TOKEN.exec(text);
    const start = position + all.length - all.trimStart().length;
    const not = negation !== undefined;
    const known = name?.toLowerCase();
    position += all.length;
    if (bracket) {
      const end = closing(text, position - 1);
      yield { start, not, filter: parse(text.slice(position - 1, end)) };
      position = end;
    } else if (known && VALUED.includes(known)) {
      yield { start, not, filter: parse(`${known}:${value}`) };
    } else if (known && NAMES.has(known)) {
      if (!value) throw new ExpressionError(`${known}: needs a value`, start);
      yield { start, name: known, value: unquoted(value), isQuoted: value.startsWith('"') };
    } else if (quoted !== undefined || word !== undefined || known) {
      // `and` joins conditions, which all must hold anyway.
      if (word?.toLowerCase() === "and") continue;
      if (not) yield { start, word: "not" };
      yield { start, word: quoted === undefined ? word ?? `${name}:${value}` : unquoted(quoted), isQuoted: quoted !== undefined };
    }
  }
}

function closing(text, start) {
  let depth = 0;
  for (let i = start; i < text.length; i += 1) {
    if (text[i] === "(") depth += 1;
    if (text[i] === ")" && (depth -= 1) === 0) return i + 1;
  }
  throw new ExpressionError("Unclosed (", start);
}

function moment(name, value, start, now) {
  const found = readMoment(value, now, { isEnd: name === "until" });
  if (found === null) {
    throw new ExpressionError(`${name}: needs a time, such as 10:00, yesterday, 2026-11-16T10:00 or 2h`, start);
  }
  return found;
}

const unquoted = (written) => (written.startsWith('"') ? written.replace(/^"|"$/g, "").replace(/\\(.)/g, "$1") : written);

// The last word may still be growing: it is a prefix.
function write({ word, isQuoted }, isLast) {
  if (isQuoted) return `"${word.replaceAll('"', " ").trim()}"`;
  const plain = word.replaceAll('"', " ").trim();
  return isLast && /[\p{L}\p{N}]$/u.test(plain) ? `${plain}*` : plain;
}
