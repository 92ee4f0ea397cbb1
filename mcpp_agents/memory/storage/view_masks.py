"""Masks of the rows that a view shows, one byte per row.

A view shows the rows of its scopes and domain that are neither forgotten nor superseded: only these
are found, counted and compared (M-12). Looking that up for every matching row would cost several
times as much as reading the rows. So each view is kept as a byte string (1 = visible), and rows of
the word index and of the matrix of vectors are tested against it. The scope and domain of a row
never change, and row numbers are never reused: only new rows and those in `changed` are looked up.
"""

import json
import sqlite3
from collections import OrderedDict
from collections.abc import Collection
from typing import Any, Final, NamedTuple

from mcpp_agents.memory.storage.item_queries import Condition

# Views whose masks are cached.
_MAX_MASKS: Final = 16

# One byte per row number from 1 on: 1 where the row is visible.
Mask = bytes


class _CachedMask(NamedTuple):
    """A mask up to the last row it has seen, and the last change it has applied."""

    visible: Mask
    changes_applied: int


class ViewMasks:
    """A cache of masks, brought up to date on each use. The connection's owner holds the lock."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._masks: OrderedDict[tuple[Any, ...], _CachedMask] = OrderedDict()

    def mask(self, condition: Condition) -> Mask:
        """Return the mask of a view, with a byte for each row up to the last one."""
        where, values = condition
        key = (where, *values)
        [(last, last_change)] = self._connection.execute(
            "SELECT (SELECT coalesce(max(seq), 0) FROM memory),"
            " (SELECT coalesce(max(mark), 0) FROM changed)"
        )
        cached = self._masks.get(key) or _CachedMask(b"", last_change)
        changes = self._connection.execute(
            "SELECT seq FROM changed WHERE mark > ?", [cached.changes_applied]
        ).fetchall()
        if changes or last > len(cached.visible):
            changed = {seq for (seq,) in changes if seq <= len(cached.visible)}
            visible = self._updated(cached.visible, changed, last, condition)
            cached = _CachedMask(visible, last_change)
        self._masks[key] = cached
        self._masks.move_to_end(key)
        if len(self._masks) > _MAX_MASKS:
            self._masks.popitem(last=False)
        return cached.visible

    def _updated(self, mask: Mask, changed: Collection[int], last: int, view: Condition) -> Mask:
        """Return a mask with the rows after its end, and with those that have changed."""
        where, values = view
        known = len(mask)
        # The new rows are few, and no index finds their scope by row number.
        how = "NOT INDEXED" if known else ""
        shown = self._connection.execute(
            f"SELECT m.seq FROM memory m {how} WHERE m.seq BETWEEN ? AND ?{where} UNION ALL"
            " SELECT m.seq FROM memory m WHERE m.seq IN (SELECT value FROM json_each(?))"
            f" AND m.superseded = 0{where}",
            [known + 1, last, *values, json.dumps(list(changed)), *values],
        )
        # Of all rows, an index has the scope, and of the superseded ones, another the number.
        superseded = self._connection.execute(
            "SELECT seq FROM memory WHERE superseded > 0 AND seq > ?", [known]
        )
        visible = bytearray(mask.ljust(last, b"\0"))
        for seq in changed:
            visible[seq - 1] = 0
        for (seq,) in shown:
            visible[seq - 1] = 1
        for (seq,) in superseded:
            visible[seq - 1] = 0
        return bytes(visible)


def mask_of(seqs: Collection[int]) -> Mask:
    """Return the mask that shows exactly these rows."""
    visible = bytearray(max(seqs, default=0))
    for seq in seqs:
        visible[seq - 1] = 1
    return bytes(visible)


def newest_start(mask: Mask, count: int) -> int:
    """Return the row after which so many visible rows follow; 0 if there are not so many."""
    start = len(mask)
    while count > 0 and (start := mask.rfind(1, 0, start) + 1):
        end, start = start, max(start - count, 0)
        count -= mask.count(1, start, end)
    return start


def mask_condition(mask: Mask, since: int = 0) -> Condition:
    """Return the condition on `memory_index`: rows after `since` that the mask shows."""
    where = " AND memory_index.rowid BETWEEN ? AND ? AND substr(?, memory_index.rowid, 1) = x'01'"
    return where, [max(since, mask.find(1)) + 1, mask.rfind(1) + 1, mask]
