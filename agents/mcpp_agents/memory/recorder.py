"""From what a listener finds to what the store keeps: as the pod, in the author's name."""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from .access import Principal
from .errors import MemoryFault
from .listener import Finding
from .pack import Remembered
from .store import MemoryStore

_log = logging.getLogger(__name__)

_MAX_CONTEXTS: Final = 10_000


class Recorder:
    """Stores findings and relates them along their lineage. It owns only that thread of ids."""

    def __init__(self, store: MemoryStore, pod: Principal) -> None:
        self._store = store
        self._pod = pod
        # Context → its memory, and the first envelope of the life that this is of.
        self._latest: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._children: dict[str, list[str]] = {}  # context → memories of those below it

    def record(self, findings: Iterable[Finding]) -> list[Remembered]:
        """Store what can be stored. Whatever one finding breaks, the others are kept."""
        return [answer for finding in findings if (answer := self._one(finding))]

    def has(self, finding: Finding) -> bool:
        """Whether it is known to be stored already, because the same log was heard before."""
        key = finding.draft.idempotency_key
        try:
            return key is not None and self._acting_for(finding).has_stored(key)
        except MemoryFault:  # storing it will say why
            return False

    def _acting_for(self, finding: Finding) -> MemoryStore:
        return self._store.acting_as(self._pod, author=finding.author, origin="bus")

    def _one(self, finding: Finding) -> Remembered | None:
        try:
            return self._store_one(finding)
        except MemoryFault as fault:
            _log.warning("nothing is kept of %s: %s", finding.draft.source, fault)
        except Exception:
            # What a participant says must not end the memory of all of them.
            _log.exception("nothing is kept of %s", finding.draft.source)
        return None

    def _store_one(self, finding: Finding) -> Remembered:
        lineage: list[str] = list(finding.metadata["lineage"])
        life = next(iter(finding.metadata["envelopes"]), "")
        related = self._related(lineage, life)
        draft = msgspec.structs.replace(finding.draft, related_to=tuple(related))
        [answer] = self._acting_for(finding).remember_many([draft], metadata=finding.metadata)
        self._keep(lineage, answer.id, life)
        return answer

    def _related(self, lineage: list[str], life: str) -> list[str]:
        here, above = lineage[-1], lineage[-2:-1]
        # An id that is used anew is another context: what it was before is not related.
        known = [id for id, of in [self._latest.get(here, ("", ""))] if id and of == life]
        known += [self._latest[each][0] for each in above if each in self._latest]
        wanted = dict.fromkeys([*known, *self._children.get(here, ())])
        # They may have been forgotten meanwhile.
        pod = self._store.acting_as(self._pod)
        return [each for each in wanted if pod.knows(each)][:16]

    def _keep(self, lineage: list[str], id: str, life: str) -> None:
        self._latest[lineage[-1]] = id, life
        self._latest.move_to_end(lineage[-1])
        if len(lineage) > 1:
            self._children.setdefault(lineage[-2], []).append(id)
        while len(self._latest) > _MAX_CONTEXTS:
            old, _ = self._latest.popitem(last=False)
            self._children.pop(old, None)
