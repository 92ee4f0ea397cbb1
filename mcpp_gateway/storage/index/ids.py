"""Positions by envelope id."""

from collections.abc import Sequence
from typing import Final

from mcpp_gateway.storage.index.database import IndexDatabase

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS part_{} (id TEXT NOT NULL, position INTEGER NOT NULL,"
    " PRIMARY KEY (id, position)) WITHOUT ROWID"
)


class IdIndex(IndexDatabase):
    """The positions of ids, which may occur more than once."""

    version = 3
    part_bits = 18

    def write(self, ids: Sequence[str], start: int, end: int) -> None:
        """Index the ids of the entries from a position on. Raises sqlite3.Error and OSError."""
        rows: dict[int, list[tuple[str, int]]] = {}
        for position, id in enumerate(ids, start):
            rows.setdefault(position >> self.part_bits, []).append((id, position))
        last_id = ids[-1] if ids else self.last_id
        with self.open() as database:
            for part, several in rows.items():
                database.execute(_TABLE.format(part))
                several.sort()  # neighbours in the tree are written together
                insert = f"INSERT OR REPLACE INTO part_{part} VALUES (?, ?)"
                database.executemany(insert, several)
            self.note(end, last_id)
        self.take_note(end, last_id, rows)

    def find(self, id: str, start: int) -> int | None:
        """Return the latest position of an id that is not before `start`. Raises sqlite3.Error."""
        for part in reversed(self.parts):
            query = f"SELECT max(position) FROM part_{part} WHERE id = ? AND position >= ?"
            (found,) = self.reader().execute(query, (id, start)).fetchone()
            if found is not None:
                return int(found)
        return None
