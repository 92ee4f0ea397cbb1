"""Reads a text that is a table, in Markdown or as comma-separated values, into records (T-23).

Only texts that are certainly tables count: prose with a few commas must not be summarised as "3
records". A Markdown table needs its delimiter line; CSV needs a header of distinct names and at
least two rows, all with the same number of fields, at least two. A quoted field may have lines.
Names after the first may be years, and a first column of numbers needs no name; with a space after
each comma, as in prose, a column must have values with digits only.
`mcpp_gateway/inspector/state/results/tables.js` does the same.
"""

import csv
import re
from typing import Final

Record = dict[str, str]

_MAX_CHARS: Final = 2_000_000
_DELIMITER_LINE: Final = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)+\|?")  # of a stripped line
_CELL_BREAK: Final = re.compile(r"(?<!\\)\|")
_is_name = re.compile(r"_*[^\W\d_][\w .#/()%$-]{0,39}").fullmatch
_has_digit = re.compile("[0-9]").search
_is_year = re.compile(r"[12][0-9]{3}(?:[-/. ]?[A-Z0-9]{1,3})?").fullmatch
_is_number = re.compile("[0-9]+").fullmatch
_DELIMITERS: Final = (",", ";", "\t")
_MIN_ROWS: Final = 2
_MAX_LINES: Final = 64  # of one row: with more, a quotation mark is probably a mistake


def read_table(text: str) -> list[Record] | None:
    """Return the rows of the table that a text consists of, by column; None for other texts.

    A Markdown table may have a heading before it and a remark after it.
    """
    if len(text) > _MAX_CHARS:
        return None
    lines = [line.strip("\r") for line in stripped(text).split("\n")]
    return _read_markdown(lines) or _read_csv(lines)


def stripped(text: str) -> str:
    """Return a text without spaces around it, nor the byte order mark that spreadsheets write."""
    return text.strip().removeprefix("\ufeff").strip()


def _read_markdown(lines: list[str]) -> list[Record] | None:
    for place in range(1, len(lines)):
        line = lines[place].strip()
        if "-" in line and "|" in line and _DELIMITER_LINE.fullmatch(line):
            names = _cells(lines[place - 1])
            rows = []
            for row in lines[place + 1 :]:
                if "|" not in row:
                    break
                rows.append(dict(zip(names, _cells(row), strict=False)))
            return rows if len(names) > 1 and rows else None
    return None


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    inner = inner.removesuffix("|") if not inner.endswith("\\|") else inner
    return [cell.strip() for cell in _CELL_BREAK.split(inner)]


def _read_csv(lines: list[str]) -> list[Record] | None:
    for delimiter in _DELIMITERS:
        if delimiter not in lines[0] or len(lines) <= _MIN_ROWS:
            continue
        rows = _rows(lines, delimiter)
        if not rows:
            continue
        names = [name.strip() for name in rows[0]]
        if len(rows) > _MIN_ROWS and all(len(row) == len(names) for row in rows):
            columns = list(zip(*rows[1:], strict=True))
            if _is_header(names, columns) and (_has_values(columns) or not _is_spaced(rows[0])):
                return [dict(zip(names, row, strict=True)) for row in rows[1:]]
    return None


def _is_header(names: list[str], columns: list[tuple[str, ...]]) -> bool:
    """Return whether these are distinct names: words or, after the first, years of other values.

    A first column of numbers may have no name: pandas writes the index of a table so.
    """
    if not len(set(names)) == len(names) > 1:
        return False
    is_indexed = not names[0] and all(_is_number(cell.strip()) for cell in columns[0])
    named = list(zip(names, columns, strict=True))[is_indexed:]
    return bool(_is_name(named[0][0])) and all(
        _is_name(name) or (_is_year(name) and not all(_is_year(cell.strip()) for cell in column))
        for name, column in named
    )


def _is_spaced(header: list[str]) -> bool:
    return all(name.startswith(" ") for name in header[1:])


def _has_values(columns: list[tuple[str, ...]]) -> bool:
    """Return whether each cell of some column is one word with a digit."""
    return any(
        all(len(cell.split()) == 1 and _has_digit(cell) for cell in column) for column in columns
    )


def _rows(lines: list[str], delimiter: str) -> list[list[str]] | None:
    """Return the fields of each row; None if a quotation mark is not closed within 64 lines."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter, strict=True)
    rows: list[list[str]] = []
    first = 0  # line of the row
    try:
        for row in reader:
            if reader.line_num - first > _MAX_LINES:
                return None
            first = reader.line_num
            rows.append(row)
    except csv.Error:
        return None
    return rows
