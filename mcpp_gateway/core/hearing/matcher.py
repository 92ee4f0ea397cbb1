"""Many filters evaluated together: which of them an envelope passes.

Each distinct predicate is decided once. A filter that needs one of some predicates is looked at
only if one of these holds, so the work grows with what holds and not with the number of filters.
Filters that begin with `not`, and those of everything, are looked at each time.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Generic, TypeAlias, TypeVar

from mcpp.filters import Addressed, Filter
from mcpp.protocol.contexts import Lineage
from mcpp_gateway.core.hearing.predicates import Predicate, Predicates, predicate_of

K = TypeVar("K")
_Test: TypeAlias = Callable[[AbstractSet[int]], bool]


class _Compiled:
    """A filter over numbered predicates."""

    __slots__ = ("needs", "passes", "predicates")

    def __init__(self, predicates: list[Predicate], passes: _Test, needs: AbstractSet[int] | None):
        self.predicates = predicates
        self.passes = passes
        self.needs = needs  # one of them must hold; None: it may pass without any


class Matcher(Generic[K]):
    """Filters by key. Owns their predicates."""

    __slots__ = ("_compiled", "_predicates", "_triggered", "_untriggered")

    def __init__(self) -> None:
        self._predicates = Predicates()
        self._compiled: dict[K, _Compiled] = {}
        self._triggered: dict[int, dict[K, None]] = {}
        self._untriggered: dict[K, None] = {}

    @property
    def globs(self) -> int:
        """The number of different globs in all filters."""
        return self._predicates.globs

    def add(self, key: K, filter: Filter) -> None:
        """Add a filter under a key that is not in use."""
        used: list[Predicate] = []
        passes, needs = _compile(filter.to_json(), self._predicates, used)
        self._compiled[key] = _Compiled(used, passes, needs)
        if needs is None:
            self._untriggered[key] = None
        else:
            for number in needs:
                self._triggered.setdefault(number, {})[key] = None

    def remove(self, key: K) -> None:
        """Remove a filter."""
        compiled = self._compiled.pop(key)
        if compiled.needs is None:
            del self._untriggered[key]
        else:
            for number in compiled.needs:
                del self._triggered[number][key]
                if not self._triggered[number]:
                    del self._triggered[number]
        for predicate in compiled.predicates:
            self._predicates.release(predicate)

    def weight(self, key: K) -> int:
        """Return the number of predicates of a filter, which its evaluation costs at most."""
        return len(self._compiled[key].predicates)

    def matching(self, entry: Addressed, lineage: Lineage | None) -> list[K]:
        """Return the keys of the filters that an envelope passes."""
        holds = self._predicates.true_of(entry, lineage)
        candidates = dict(self._untriggered)
        triggered = self._triggered
        for number in holds:
            if number in triggered:
                candidates |= triggered[number]
        compiled = self._compiled
        return [key for key in candidates if compiled[key].passes(holds)]


class Selector:
    """One filter for many envelopes: remembers what holds for kinds. Owns its predicates."""

    __slots__ = ("_matcher",)

    def __init__(self, filter: Filter) -> None:
        self._matcher: Matcher[None] = Matcher()
        self._matcher.add(None, filter)

    def passes(self, entry: Addressed, lineage: Lineage | None) -> bool:
        """Return whether an envelope passes the filter."""
        return bool(self._matcher.matching(entry, lineage))


def _compile(
    value: dict[str, Any], predicates: Predicates, used: list[Predicate]
) -> tuple[_Test, AbstractSet[int] | None]:
    """Return the test of a filter's JSON value, and the predicates of which it needs one."""
    if "not" in value:
        part, _ = _compile(value["not"], predicates, used)
        return lambda holds: not part(holds), None
    for name, combine in (("any", _any), ("all", _all)):
        if name in value:
            leaves: set[int] = set()
            others: list[tuple[_Test, AbstractSet[int] | None]] = []
            for each in value[name]:
                if each.keys() & {"any", "all", "not"}:
                    others.append(_compile(each, predicates, used))
                else:
                    leaves.add(_acquire(each, predicates, used))
            return combine(frozenset(leaves), others)
    number = _acquire(value, predicates, used)
    return lambda holds: number in holds, {number}


def _acquire(leaf: dict[str, Any], predicates: Predicates, used: list[Predicate]) -> int:
    predicate = predicate_of(leaf)
    used.append(predicate)
    return predicates.acquire(predicate)


def _any(
    leaves: frozenset[int], others: list[tuple[_Test, AbstractSet[int] | None]]
) -> tuple[_Test, AbstractSet[int] | None]:
    needs = _union(leaves, (need for _, need in others))
    tests = [test for test, _ in others]
    if not tests:
        return lambda holds: not leaves.isdisjoint(holds), needs
    return (
        lambda holds: not leaves.isdisjoint(holds) or any(test(holds) for test in tests),
        needs,
    )


def _all(
    leaves: frozenset[int], others: list[tuple[_Test, AbstractSet[int] | None]]
) -> tuple[_Test, AbstractSet[int] | None]:
    tests = [test for test, _ in others]
    # One of the parts is enough to find it by: that with the fewest ways to hold.
    known = [need for _, need in others if need is not None]
    known += [{number} for number in list(leaves)[:1]]
    needs = min(known, key=len, default=None)
    if not tests:
        return leaves.issubset, needs
    return lambda holds: leaves <= holds and all(test(holds) for test in tests), needs


def _union(
    leaves: frozenset[int], needs: Iterable[AbstractSet[int] | None]
) -> AbstractSet[int] | None:
    found = set(leaves)
    for need in needs:
        if need is None:
            return None
        found |= need
    return found
