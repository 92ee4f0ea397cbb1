// Reads a text that is a table into records, as mcpp/transient/tables.py does.

const MAX_CHARS = 2_000_000;
const DELIMITER_LINE = /^\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?\s*$/u;
const NAME = /^_*[\p{L}\p{Nl}\p{No}][\p{L}\p{N}_ .#/()%$-]{0,39}$/u;
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
    const isHeader =
      names.length > 1 && new Set(names).size === names.length && names.every((name) => NAME.test(name));
    if (isHeader && rows.length > MIN_ROWS && rows.every((row) => row.length === names.length)) {
      return rows.slice(1).map((row) => record(names, row));
    }
  }
  return null;
}

// Return the fields of each row, or null if a quotation mark is not closed.
function readRows(lines, delimiter) {
  const rows = [];
  let held = []; // lines of a row whose quoted field goes on
  for (const line of lines) {
    held.push(line);
    const row = fields(held.join("\n"), delimiter);
    if (row) {
      rows.push(row);
      held = [];
    } else if (held.length === MAX_LINES) {
      return null;
    }
  }
  return held.length ? null : rows;
}

// Return the fields of a row, or null if its quotation marks are not in pairs.
function fields(line, delimiter) {
  if (line === "") return [];
  const found = [];
  let at = 0;
  for (;;) {
    let field = "";
    if (line[at] === '"') {
      const quoted = /"((?:[^"]|"")*)"/uy;
      quoted.lastIndex = at;
      const match = quoted.exec(line);
      if (!match) return null;
      field = match[1].replaceAll('""', '"');
      at = quoted.lastIndex;
      if (at < line.length && line[at] !== delimiter) return null;
    } else {
      const end = line.indexOf(delimiter, at);
      field = line.slice(at, end < 0 ? line.length : end);
      at += field.length;
    }
    found.push(field);
    if (at >= line.length) return found;
    at += 1;
  }
}

function record(names, row) {
  const found = Object.create(null);
  names.forEach((name, index) => {
    if (index < row.length) found[name] = row[index];
  });
  return found;
}
