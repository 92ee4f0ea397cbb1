"""From what a listener finds to what the store keeps: as the pod, in the author's name."""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from mcpp_agents.memory.access import Principal
from mcpp_agents.memory.bus.findings import Finding
from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.pack import Remembered
from mcpp_agents.memory.store import MemoryStore

_log = logging.getLogger(__name__)

_MAX_CONTEXTS: Final = 10_000
_MAX_RELATED: Final = 16

T = TypeVar("T")
_Context = tuple[str, int]  # its id, and which life of it


class Recorder:
    """Stores findings and relates them along their lineage. It owns only that thread of ids."""

    def __init__(self, store: MemoryStore, pod: Principal) -> None:
        self._store = store
        self._pod = pod
        # An id that is used anew is another context, so each is known by its life as well.
        self._latest: OrderedDict[_Context, str] = OrderedDict()  # to its latest memory
        self._children: OrderedDict[_Context, list[str]] = OrderedDict()  # to those below it

    def record(self, findings: Iterable[Finding]) -> list[Remembered]:
        """Store what can be stored. Whatever one finding breaks, the others are kept."""
        return [answer for finding in findings if (answer := self._one(finding))]

    def has(self, finding: Finding) -> bool:
        """Whether it is known to be stored already, because the same log was heard before."""
        key = finding.draft.idempotency_key
        try:
            return key is not None and self._acting_for(finding).has_stored(key)
        except MemoryStoreError:  # storing it will say why
            return False

    def _acting_for(self, finding: Finding) -> MemoryStore:
        return self._store.acting_as(self._pod, author=finding.author, origin="bus")

    def _one(self, finding: Finding) -> Remembered | None:
        try:
            return self._store_one(finding)
        except MemoryStoreError as fault:
            _log.warning("nothing is kept of %s: %s", finding.draft.source, fault)
        except Exception:
            # What a participant says must not end the memory of all of them.
            _log.exception("nothing is kept of %s", finding.draft.source)
        return None

    def _store_one(self, finding: Finding) -> Remembered:
        here, *above = zip(reversed(finding.metadata["lineage"]), finding.lives, strict=False)
        draft = msgspec.structs.replace(finding.draft, related_to=tuple(self._related(here, above)))
        [answer] = self._acting_for(finding).remember_many([draft], metadata=finding.metadata)
        _put(self._latest, here, answer.id)
        for each in above:
            _put(self._children, each, [*self._children.get(each, ()), answer.id][-_MAX_RELATED:])
        return answer

    def _related(self, here: _Context, above: list[_Context]) -> list[str]:
        known = [self._latest[each] for each in (here, *above) if each in self._latest]
        wanted = dict.fromkeys([*known, *self._children.get(here, ())])
        # They may have been forgotten meanwhile.
        pod = self._store.acting_as(self._pod)
        return [each for each in wanted if pod.knows(each)][:_MAX_RELATED]


def _put(contexts: OrderedDict[_Context, T], context: _Context, value: T) -> None:
    """Keep it as the latest of as many as are kept."""
    contexts[context] = value
    contexts.move_to_end(context)
    if len(contexts) > _MAX_CONTEXTS:
        contexts.popitem(last=False)
