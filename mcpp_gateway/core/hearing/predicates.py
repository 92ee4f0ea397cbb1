"""The distinct predicates of many filters, each decided once for an envelope.

A predicate is a leaf of a filter, such as `{"from": "files"}`. Most are found by a lookup: the
sender in a table of senders, the kind in a table of kinds. Globs are found by their longer end, the
text before the first star or the text after the last; only those with neither are all tried. What
holds for a kind is remembered, because most envelopes have a kind that was seen before.
"""

from collections.abc import Callable, Collection
from typing import Any, Final, TypeAlias

from mcpp import kinds
from mcpp.filters import Addressed
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.globs import compile_glob

Predicate: TypeAlias = tuple[str, str]  # a table's name, and what is looked up there

MAIN: Final[Predicate] = ("main", "")
# Predicates on these say nothing about a context; see `rights`.
_REMEMBERED_KINDS: Final = 256
_NONE: Final[frozenset[int]] = frozenset()


class Predicates:
    """The predicates in use, by number. Owns their numbers and what is remembered of kinds."""

    __slots__ = ("_free", "_globs", "_kinds", "_numbers", "_tables", "_uses")

    def __init__(self) -> None:
        self._numbers: dict[Predicate, int] = {}
        self._uses: dict[Predicate, int] = {}
        self._free: list[int] = []
        self._tables: dict[str, dict[str, int]] = {
            name: {} for name in ("main", "type", "context", "descendants", "kind", "from", "to")
        }
        self._globs = _Globs()
        self._kinds: dict[str, frozenset[int]] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def globs(self) -> int:
        """The number of different globs with a star."""
        return len(self._globs)

    def acquire(self, predicate: Predicate) -> int:
        """Return the number of a predicate, which is in use until `release`."""
        number = self._numbers.get(predicate)
        if number is None:
            number = self._free.pop() if self._free else len(self._numbers)
            self._numbers[predicate] = number
            self._uses[predicate] = 0
            self._add(predicate, number)
        self._uses[predicate] += 1
        return number

    def release(self, predicate: Predicate) -> None:
        """Give a predicate up; without other users it is forgotten."""
        self._uses[predicate] -= 1
        if not self._uses[predicate]:
            del self._uses[predicate]
            number = self._numbers.pop(predicate)
            self._free.append(number)
            self._remove(predicate, number)

    def true_of(self, entry: Addressed, lineage: Lineage | None) -> set[int]:
        """Return the numbers of all predicates that hold for an envelope."""
        tables = self._tables
        found = set(self._of_kind(entry.kind))
        if entry.sender in tables["from"]:
            found.add(tables["from"][entry.sender])
        if tables["to"] and entry.to:
            found.update(_lookup(tables["to"], entry.to))
        found |= self.true_of_context(lineage)
        return found

    def true_of_context(self, lineage: Lineage | None) -> set[int]:
        """Return the numbers of the predicates on contexts that hold for one."""
        tables = self._tables
        if lineage is None:
            return set(tables["main"].values())
        found = set()
        if lineage.type is not None and lineage.type in tables["type"]:
            found.add(tables["type"][lineage.type])
        if lineage.id in tables["context"]:
            found.add(tables["context"][lineage.id])
        if tables["descendants"]:
            found.update(_lookup(tables["descendants"], (lineage.id, *lineage.ancestors)))
        return found

    def _of_kind(self, kind: str) -> frozenset[int]:
        found = self._kinds.get(kind)
        if found is None:
            if len(self._kinds) >= _REMEMBERED_KINDS:
                self._kinds.clear()
            spelled = kinds.decoded(kind)
            exact = self._tables["kind"].get(spelled)
            found = self._globs.matching(spelled) | ({exact} if exact is not None else _NONE)
            self._kinds[kind] = found
        return found

    def _add(self, predicate: Predicate, number: int) -> None:
        table, value = predicate
        if table == "kind":
            self._kinds.clear()
        if table == "kind" and "*" in value:
            self._globs.add(value, number)
        else:
            self._tables[table][value] = number

    def _remove(self, predicate: Predicate, number: int) -> None:
        table, value = predicate
        if table == "kind":
            self._kinds.clear()
        if table == "kind" and "*" in value:
            self._globs.remove(value, number)
        else:
            del self._tables[table][value]


class _Globs:
    """Globs with at least one star, found by their longer end. Owns the tables of ends."""

    __slots__ = ("_by_end", "_count", "_lengths")

    def __init__(self) -> None:
        # By (whether at the beginning, text): number and test of each glob with that end.
        self._by_end: dict[tuple[bool, str], dict[int, Callable[[str], bool]]] = {}
        self._lengths: dict[tuple[bool, int], int] = {}  # how many such ends there are
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, glob: str, number: int) -> None:
        end = _longer_end(glob)
        if end not in self._by_end:
            self._by_end[end] = {}
            length = (end[0], len(end[1]))
            self._lengths[length] = self._lengths.get(length, 0) + 1
        self._by_end[end][number] = compile_glob(glob)
        self._count += 1

    def remove(self, glob: str, number: int) -> None:
        end = _longer_end(glob)
        del self._by_end[end][number]
        self._count -= 1
        if not self._by_end[end]:
            del self._by_end[end]
            length = (end[0], len(end[1]))
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def matching(self, kind: str) -> frozenset[int]:
        found: list[int] = []
        for first, length in self._lengths:
            part = kind[:length] if first else kind[len(kind) - length :] if length else ""
            candidates = self._by_end.get((first, part))
            if candidates is not None:
                found += [number for number, test in candidates.items() if test(kind)]
        return frozenset(found)


def _longer_end(glob: str) -> tuple[bool, str]:
    first, last = glob[: glob.index("*")], glob[glob.rindex("*") + 1 :]
    return (True, first) if len(first) >= len(last) else (False, last)


def _lookup(table: dict[str, int], wanted: Collection[str]) -> list[int]:
    """Return what a table holds of these, walking through the shorter of the two."""
    if len(table) < len(wanted):
        return [number for value, number in table.items() if value in wanted]
    return [table[value] for value in wanted if value in table]


def predicate_of(leaf: dict[str, Any]) -> Predicate:
    """Return the predicate of a filter's JSON value without parts of its own."""
    if "context" in leaf:
        return "descendants" if leaf.get("descendants") else "context", leaf["context"]
    ((table, value),) = leaf.items()
    return MAIN if table == "main" else (table, value)
