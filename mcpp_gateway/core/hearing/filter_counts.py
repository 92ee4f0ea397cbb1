"""How many different filters the connections of a pod use, counted by what they cost (F-22)."""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from mcpp.filters import Filter, everything
from mcpp_gateway.core.limits import PodLimits

# A filter counts once for each of so many parts that it has.
_PARTS_PER_COUNT: Final = 8

_encode = msgspec.json.Encoder().encode


class FilterCounts:
    """The filters in use, by participant and in all. Owns the counts."""

    __slots__ = ("_limits", "_used", "_weights", "total")

    def __init__(self, limits: PodLimits) -> None:
        self.change_limits(limits)
        self._used: dict[tuple[str, bytes], int] = {}  # (participant or "", filter): by how many
        self._weights: dict[str, int] = {}  # by participant
        self.total = 0

    def change_limits(self, limits: PodLimits) -> None:
        """Apply new limits. Filters that are in use stay."""
        self._limits = limits

    def allow(self, participant: str, filter: Filter, previous: Filter = everything) -> bool:
        """Return whether a participant may use a filter, in place of a previous one."""
        key = _encode(filter.to_json())
        if filter == everything or (participant, key) in self._used:
            return True
        weight = filter_weight(filter)
        # One connection may always exchange its filter for another that costs no more.
        freed = filter_weight(previous)
        own = self._weights.get(participant, 0) + weight - freed
        return (
            own <= self._limits.max_filters_per_participant
            and self.total + (0 if ("", key) in self._used else weight) - freed
            <= self._limits.max_filters_per_pod
        )

    def add(self, participant: str, filter: Filter) -> None:
        """Count a connection's filter."""
        self._change(participant, filter, 1)

    def remove(self, participant: str, filter: Filter) -> None:
        """Stop counting a connection's filter."""
        self._change(participant, filter, -1)

    def _change(self, participant: str, filter: Filter, by: int) -> None:
        if filter == everything:
            return
        key, weight = _encode(filter.to_json()), filter_weight(filter)
        for owner in (participant, ""):
            count = self._used.get((owner, key), 0) + by
            is_new, is_gone = by > 0 and count == 1, not count
            if is_gone:
                del self._used[owner, key]
            else:
                self._used[owner, key] = count
            change = weight if is_new else -weight if is_gone else 0
            if not owner:
                self.total += change
            elif left := self._weights.get(owner, 0) + change:
                self._weights[owner] = left
            else:
                self._weights.pop(owner, None)


def filter_weight(filter: Filter) -> int:
    """Return how many times a filter counts: once for each eight of its parts."""
    if filter == everything:
        return 0
    return -(-sum(1 for _ in _parts(filter.to_json())) // _PARTS_PER_COUNT)


def _parts(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield value
    for each in value.get("any") or value.get("all") or ():
        yield from _parts(each)
    if "not" in value:
        yield from _parts(value["not"])
