// One-line summaries of tool results, identical to those of mcpp/transient/summaries.py.

import { parseExactly } from "../json.js";
import { isObject } from "../kinds.js";
import { readTable } from "./tables.js";

const GENERIC = new Set(["records", "items", "results", "data", "rows", "entries", "result"]);
const ID_KEYS = ["id", "ID", "_id", "uuid", "key", "name", "title"];
const PAGE_KEYS = ["page", "page_number", "pageNumber", "current_page", "currentPage"];
const PAGES_KEYS = ["pages", "total_pages", "totalPages", "page_count", "pageCount"];
const MEDIA = { image: "image", audio: "recording", resource: "file", resource_link: "link" };
const SHOWN_IDS = 3;

/** Return the text on one line, truncated to `limit` characters. */
export function cut(text, limit = 240) {
  // A character has at most two code units, so a long text need not be read completely.
  const enough = 2 * limit + 2;
  let line = "";
  for (const [word] of text.matchAll(/\S+/gu)) {
    line += (line && " ") + word.slice(0, enough);
    if (line.length >= enough) break;
  }
  const characters = [...line.slice(0, enough)];
  return characters.length <= limit
    ? line
    : `${characters.slice(0, limit - 1).join("").trimEnd()}…`;
}

/** Return whether a JSON value is truthy in Python: empty lists and objects are not. */
export function isTruthy(value) {
  if (Array.isArray(value)) return value.length > 0;
  return isObject(value) ? Object.keys(value).length > 0 : Boolean(value);
}

export function summarize(result) {
  const found = findRecords(result);
  if (!found) return sizeOf(result);
  const { name, records, around } = found;
  let what = GENERIC.has(name) ? "records" : name;
  if (records.length === 1 && what.endsWith("records")) what = what.slice(0, -1);
  const facts = [page(around), ids(records)].filter(Boolean);
  const more = facts.length ? ` (${facts.join(", ")})` : "";
  return cut(`${records.length.toLocaleString("en")} ${what}${more}`);
}

/** Return all visible text of a result. */
export function visibleText(result) {
  const parts = blocksOf(result).map(textIn).filter((text) => text !== null);
  const structured = result.structuredContent;
  if (!parts.length && structured !== undefined && structured !== null) {
    parts.push(JSON.stringify(structured));
  }
  return parts.join("\n");
}

export function blocksOf(result) {
  return Array.isArray(result.content) ? result.content.filter(isObject) : [];
}

/** Return the text of a content block, or of the resource that is embedded in it; null if none. */
export function textIn(block) {
  const isResource = block.type === "resource" && isObject(block.resource);
  const { text } = isResource ? block.resource : block;
  return typeof text === "string" ? text : null;
}

function findRecords(result) {
  return recordsIn(result.structuredContent) ?? recordsIn(readText(result));
}

function recordsIn(value) {
  if (Array.isArray(value)) return { name: "records", records: value, around: {} };
  if (!isObject(value)) return null;
  let best = null;
  for (const [name, list] of Object.entries(value)) {
    if (!Array.isArray(list)) continue;
    const generic = Number(GENERIC.has(name));
    const longer = best && (list.length - best.records.length || generic - best.generic);
    if (!best || longer > 0) best = { name, records: list, around: value, generic };
  }
  return best;
}

// Some servers send a list as one block of JSON for each record.
function readText(result) {
  const given = blocksOf(result).map(textIn);
  if (!given.length || given.includes(null)) return null;
  const texts = given.map((text) => text.trim()); // which removes a byte order mark, too
  if (texts.length === 1) return /^[[{]/.test(texts[0]) ? parsed(texts[0]) : readTable(texts[0]);
  if (!texts.every((text) => text[0] === "{")) return null;
  const records = texts.map(parsed);
  return records.includes(null) ? null : records;
}

function parsed(text) {
  try {
    return parseExactly(text);
  } catch {
    return null;
  }
}

function sizeOf(result) {
  const text = visibleText(result);
  const types = blocksOf(result).filter((block) => textIn(block) === null).map(({ type }) => type);
  const parts = [];
  if (text) parts.push(`${[...text].length.toLocaleString("en")} characters of text`);
  for (const [type, noun] of Object.entries(MEDIA)) {
    const count = types.filter((one) => one === type).length;
    if (count) parts.push(`${count} ${noun}${count > 1 ? "s" : ""}`);
  }
  const line = text.trim().split(/\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]/u)[0];
  return cut((parts.join(", ") || "nothing") + (line ? `: ${cut(line, 60)}` : ""));
}

function page(around) {
  const places = isObject(around.pagination) ? [around, around.pagination] : [around];
  const at = firstInteger(places, PAGE_KEYS);
  const of = firstInteger(places, PAGES_KEYS);
  if (at === null) return "";
  return of === null ? `page ${at}` : `page ${at}/${of}`;
}

function firstInteger(places, keys) {
  for (const place of places) {
    for (const name of keys) if (digitsOf(place[name])) return digitsOf(place[name]);
  }
  return null;
}

// Return an integer's digits, null for anything else. Unsafe integers were kept as raw JSON.
function digitsOf(value) {
  return JSON.isRawJSON?.(value) ? value.rawJSON : Number.isSafeInteger(value) ? String(value) : null;
}

function ids(records) {
  for (const name of ID_KEYS) {
    const shown = records
      .slice(0, SHOWN_IDS)
      .filter(isObject)
      .map((record) => (typeof record[name] === "string" ? record[name] : digitsOf(record[name])));
    if (shown.length && shown.every((id) => id !== null)) {
      const more = records.length > SHOWN_IDS ? "…" : "";
      return `IDs: ${shown.map((id) => cut(id, 40)).join(", ")}${more}`;
    }
  }
  return "";
}
