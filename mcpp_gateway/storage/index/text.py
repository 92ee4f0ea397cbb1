"""Positions by words and facts, in SQLite's FTS5.

FTS5 keeps neither the texts nor the places of words, only the positions of the log that have a
term: that is enough to find what may match, and takes a fifth of the room. The tokenizer is
`ascii`: words of other scripts come cut and folded from `history.words`.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from mcpp_gateway.core.history.plan import AllOf, AnyOf, Plan, Term, facts
from mcpp_gateway.core.history.words import index_terms, searchable
from mcpp_gateway.core.records import Batch, LogEntry
from mcpp_gateway.storage.index.database import IndexDatabase

_TABLE: Final = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS part_{} USING fts5"
    " (terms, content='', detail='none', columnsize=0, tokenize='ascii')"
)


class Candidates(NamedTuple):
    """Positions that may match. All up to `looked_to` were looked at, itself included."""

    positions: list[int]
    looked_to: int


class TextIndex(IndexDatabase):
    """The positions of terms."""

    version = 2
    # A query takes some milliseconds for a part at most, and then asks whether to go on.
    part_bits = 15
    found_at_once = 256

    def write(self, batches: Iterable[Batch], start: int, end: int) -> None:
        """Index the entries from a position on. Raises sqlite3.Error and OSError."""
        rows: dict[int, list[tuple[int, str]]] = {}
        last_id = self.last_id
        for batch in batches:
            for position, entry in enumerate(batch.entries, batch.position):
                if start <= position < end:
                    rows.setdefault(position >> self.part_bits, []).append(
                        (position, _terms(entry))
                    )
                    last_id = entry.id
        with self.open() as database:
            for part, several in rows.items():
                if part not in self.parts:
                    database.execute(_TABLE.format(part))
                insert = f"INSERT INTO part_{part} (rowid, terms) VALUES (?, ?)"
                database.executemany(insert, several)
            self.note(end, last_id)
        self.take_note(end, last_id, rows)

    def candidates(
        self, plan: Plan, start: int, end: int, *, newest_first: bool
    ) -> Iterator[Candidates]:
        """Yield what may match between two indexed positions, in order. Raises sqlite3.Error."""
        expression = _expression(plan)
        parts = range(start >> self.part_bits, ((end - 1) >> self.part_bits) + 1)
        for part in reversed(parts) if newest_first else parts:
            low = max(start, part << self.part_bits)
            high = min(end, (part + 1) << self.part_bits)
            if expression is None or part not in self.parts:
                yield Candidates([], low if newest_first else high - 1)
                continue
            while low < high:
                values = (expression, low, high, self.found_at_once)
                rows = self.reader().execute(_query(part, newest_first), values)
                found = [position for (position,) in rows]
                if len(found) < self.found_at_once:
                    yield Candidates(found, low if newest_first else high - 1)
                    break
                yield Candidates(found, found[-1])
                low, high = (low, found[-1]) if newest_first else (found[-1] + 1, high)


def _terms(entry: LogEntry) -> str:
    return f"{index_terms(searchable(entry.text))} {' '.join(facts(entry))}"


def _query(part: int, newest_first: bool) -> str:
    order = "DESC" if newest_first else "ASC"
    return (
        f"SELECT rowid FROM part_{part} WHERE part_{part} MATCH ? AND rowid >= ? AND rowid < ?"
        f" ORDER BY rowid {order} LIMIT ?"
    )


def _expression(plan: Plan) -> str | None:
    """Return a plan as FTS5 reads it; None if nothing satisfies it."""
    if isinstance(plan, Term):
        # Terms are words and numbers, so there is nothing to escape.
        return f'"{plan.text}"{" *" if plan.prefix else ""}'
    found = [_expression(part) for part in plan.parts]
    some = [part for part in found if part is not None]
    if isinstance(plan, AllOf):
        return f"({' AND '.join(some)})" if len(some) == len(found) else None
    assert isinstance(plan, AnyOf)
    return f"({' OR '.join(some)})" if some else None
