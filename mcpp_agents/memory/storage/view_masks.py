"""Masks of the rows that a view shows, one byte per row.

Looking up the scope of every matching row would cost several times as much as reading the rows. So
each view is kept as a byte string (1 = visible), and rows of the word index are tested against it.
The scope and domain of a row never change, and row numbers are never reused: a mask only grows, and
loses the rows that are forgotten.
"""

import sqlite3
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import compress
from typing import Any, Final

from mcpp_agents.memory.storage.item_queries import Condition

# Views whose masks are cached.
_MAX_MASKS: Final = 16

# One byte per row number from 1 on: 1 where the row is visible.
Mask = bytes


@dataclass(slots=True)
class _CachedMask:
    """A mask up to the last row it has seen, and the last removal it has applied."""

    visible: bytearray = field(default_factory=bytearray)
    removals_applied: int = 0


class ViewMasks:
    """A cache of masks, brought up to date on each use. The connection's owner holds the lock."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._masks: OrderedDict[tuple[Any, ...], _CachedMask] = OrderedDict()

    def mask(self, condition: Condition) -> Mask:
        """Return the mask of a view for all rows that exist now."""
        where, values = condition
        key = (where, *values)
        mask = self._masks.setdefault(key, _CachedMask())
        self._masks.move_to_end(key)
        if len(self._masks) > _MAX_MASKS:
            self._masks.popitem(last=False)
        self._apply_removals(mask)
        known = len(mask.visible)
        [(last,)] = self._connection.execute("SELECT coalesce(max(seq), 0) FROM memory")
        if last > known:
            # The new rows are few, and no index finds their scope by row number.
            how = "NOT INDEXED" if known else ""
            rows = self._connection.execute(
                f"SELECT m.seq FROM memory m {how} WHERE m.seq BETWEEN ? AND ?{where}",
                (known + 1, last, *values),
            ).fetchall()
            mask.visible.extend(bytes(last - known))
            for (seq,) in rows:
                mask.visible[seq - 1] = 1
        return bytes(mask.visible)  # a copy: the cached one grows while others use this one

    def _apply_removals(self, mask: _CachedMask) -> None:
        removals = self._connection.execute(
            "SELECT mark, seq FROM forgotten WHERE mark > ?", [mask.removals_applied]
        ).fetchall()
        for mark, seq in removals:
            mask.removals_applied = mark
            if seq <= len(mask.visible):
                mask.visible[seq - 1] = 0


def mask_of(seqs: Collection[int]) -> Mask:
    """Return the mask that shows exactly these rows."""
    visible = bytearray(max(seqs, default=0))
    for seq in seqs:
        visible[seq - 1] = 1
    return bytes(visible)


def newest_start(mask: Mask | None, last: int, count: int) -> int:
    """Return the row after which so many visible rows follow; 0 if there are not so many."""
    if mask is None:
        return max(last - count, 0)
    start = len(mask)
    while count > 0 and (start := mask.rfind(1, 0, start) + 1):
        end, start = start, max(start - count, 0)
        count -= mask.count(1, start, end)
    return start


def newest_rows(mask: Mask | None, last: int, count: int) -> list[int]:
    """Return the newest visible rows; a mask of None shows all up to the last."""
    start = newest_start(mask, last, count)
    if mask is None:
        return list(range(start + 1, last + 1))
    return list(compress(range(start + 1, len(mask) + 1), memoryview(mask)[start:]))


def mask_condition(mask: Mask | None, since: int = 0) -> Condition:
    """Return the condition on `memory_index`: rows after `since` that the mask shows."""
    if mask is None:
        return (" AND memory_index.rowid > ?", [since]) if since else ("", [])
    where = " AND memory_index.rowid BETWEEN ? AND ? AND substr(?, memory_index.rowid, 1) = x'01'"
    return where, [max(since, mask.find(1)) + 1, mask.rfind(1) + 1, mask]
