// Reads a text that is a table into records, as mcpp/transient/tables.py does.

const MAX_CHARS = 2_000_000;
const DELIMITER_LINE = /^\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?$/u; // of a trimmed line
const NAME = /^_*[\p{L}\p{Nl}\p{No}][\p{L}\p{N}_ .#/()%$-]{0,39}$/u;
const YEAR = /^[12][0-9]{3}(?:[-/. ]?[A-Z0-9]{1,3})?$/u;
const MIN_ROWS = 2;
const MAX_LINES = 64;

/** Return the rows of the table that a text consists of, or null for other texts. */
export function readTable(text) {
  if (text.length > MAX_CHARS) return null;
  const lines = text.trim().split("\n").map((line) => line.replace(/^\r+|\r+$/gu, ""));
  return readMarkdown(lines) ?? readCsv(lines);
}

function readMarkdown(lines) {
  for (let place = 1; place < lines.length; place += 1) {
    if (!lines[place].includes("|") || !DELIMITER_LINE.test(lines[place].trim())) continue;
    const names = cells(lines[place - 1]);
    const after = lines.slice(place + 1);
    const end = after.findIndex((line) => !line.includes("|"));
    const rows = (end < 0 ? after : after.slice(0, end)).map((line) => record(names, cells(line)));
    return names.length > 1 && rows.length ? rows : null;
  }
  return null;
}

function cells(line) {
  let inner = line.trim();
  if (inner.startsWith("|")) inner = inner.slice(1);
  if (inner.endsWith("|") && !inner.endsWith("\\|")) inner = inner.slice(0, -1);
  return inner.split(/(?<!\\)\|/u).map((cell) => cell.trim());
}

function readCsv(lines) {
  for (const delimiter of [",", ";", "\t"]) {
    if (!lines[0].includes(delimiter) || lines.length <= MIN_ROWS) continue;
    const rows = readRows(lines, delimiter);
    if (!rows) continue;
    const names = rows[0].map((name) => name.trim());
    if (rows.length <= MIN_ROWS || !rows.every((row) => row.length === names.length)) continue;
    const columns = names.map((_, at) => rows.slice(1).map((row) => row[at].trim()));
    const isSpaced = rows[0].slice(1).every((name) => name.startsWith(" "));
    if (isHeader(names, columns) && (!isSpaced || hasValues(columns))) {
      return rows.slice(1).map((row) => record(names, row));
    }
  }
  return null;
}

// Distinct names: words or, after the first, years of other values. A first column of numbers needs no name.
function isHeader(names, columns) {
  if (names.length < 2 || new Set(names).size < names.length) return false;
  const first = names[0] === "" && columns[0].every((cell) => /^[0-9]+$/u.test(cell)) ? 1 : 0;
  if (!NAME.test(names[first])) return false;
  return names.slice(first).every(
    (name, at) => NAME.test(name) || (YEAR.test(name) && !columns[first + at].every((cell) => YEAR.test(cell))),
  );
}

// In prose, a space follows each comma: there, each cell of some column must be one word with a digit.
function hasValues(columns) {
  return columns.some((column) => column.every((cell) => /[0-9]/u.test(cell) && !/\s/u.test(cell)));
}

// Return the fields of each row, or null if a quotation mark is not closed within 64 lines.
function readRows(lines, delimiter) {
  const text = `${lines.join("\n")}\n`;
  const quoted = `"([^"]*(?:""[^"]*)*)"`;
  const next = new RegExp(`(?:${quoted}|((?!")[^${delimiter}\r\n]*))([${delimiter}\n])`, "uy");
  const rows = [];
  let row = [];
  let lineCount = 0; // of the row
  while (next.lastIndex < text.length) {
    const match = next.exec(text);
    if (!match) return null;
    lineCount += match[0].split("\n").length - 1;
    if (lineCount > MAX_LINES) return null;
    row.push(match[1]?.replaceAll('""', '"') ?? match[2]);
    if (match[3] === "\n") {
      rows.push(row);
      row = [];
      lineCount = 0;
    }
  }
  return rows;
}

function record(names, row) {
  const found = Object.create(null);
  names.forEach((name, index) => {
    if (index < row.length) found[name] = row[index];
  });
  return found;
}
