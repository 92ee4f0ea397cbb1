"""Stores extracted memories as the pod, in their author's name, with their relations."""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from mcpp_agents.memory.access import Principal
from mcpp_agents.memory.auditing import LogPlace
from mcpp_agents.memory.bus.extracted_memory import ExtractedMemory
from mcpp_agents.memory.bus.summaries.rolling import EndedSummary, RollingSummary
from mcpp_agents.memory.bus.summaries.summary_store import SummaryStore
from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.pack import Remembered
from mcpp_agents.memory.store import MemoryStore

logger = logging.getLogger("mcpp.memory")

_MAX_CONTEXTS: Final = 10_000
_MAX_RELATED: Final = 16

T = TypeVar("T")
_Context = tuple[str, int]  # id and generation: an id that is used again is another context


class Recorder:
    """Stores memories and relates them along their lineage. It owns the ids this needs."""

    def __init__(
        self,
        store: MemoryStore,
        pod: Principal,
        *,
        last_erasure: Callable[[], float | None] = lambda: None,
    ) -> None:
        """Describe where to store.

        Args:
            store: the memory.
            pod: the principal of the pod.
            last_erasure: returns the time of the last erasure that was received (H-14).
        """
        self._store = store
        self._pod = pod
        self._last_erasure = last_erasure
        self.summaries: Final = SummaryStore(store, pod.id.removeprefix("pod:"))
        self._latest: OrderedDict[_Context, str] = OrderedDict()  # the latest memory of each
        self._children: OrderedDict[_Context, list[str]] = OrderedDict()  # memories of children

    def record(self, memories: Iterable[ExtractedMemory]) -> list[Remembered]:
        """Store the memories; one that cannot be stored is logged and does not stop the others."""
        return [answer for memory in memories if (answer := self._record(memory))]

    def record_summary(self, summary: RollingSummary | EndedSummary) -> None:
        """Store the summary of an open context in the place of the one before, or drop it."""
        try:
            if isinstance(summary, EndedSummary):
                self.summaries.drop(summary.context)
            else:
                self.summaries.put(summary, last_erasure=self._last_erasure())
        except MemoryStoreError as error:
            logger.warning("cannot store the summary of %s: %s", summary.context, error)
        except Exception:
            # The text of one participant must not stop the memory of the pod.
            logger.exception("cannot store the summary of %s", summary.context)

    def previous_summary(self, summary: RollingSummary) -> tuple[str, str, str]:
        """Return what the stored summary covers last, its text and its author, as far as known."""
        try:
            return self.summaries.previous(summary)
        except MemoryStoreError:  # storing it will report the error
            return "", "", ""

    def has(self, memory: ExtractedMemory) -> bool:
        """Return whether a memory is stored already, because its log was read before."""
        key = memory.draft.idempotency_key
        try:
            return key is not None and self._acting_for(memory).stored_under(key) is not None
        except MemoryStoreError:  # storing it will report the error
            return False

    def _acting_for(self, memory: ExtractedMemory) -> MemoryStore:
        return self._store.acting_as(
            self._pod, author=memory.author, origin="bus", place=LogPlace(self._last_erasure())
        )

    def _record(self, memory: ExtractedMemory) -> Remembered | None:
        try:
            return self._remember(memory)
        except MemoryStoreError as error:
            logger.warning("cannot store the memory from %s: %s", memory.draft.source, error)
        except Exception:
            # The text of one participant must not stop the memory of the pod.
            logger.exception("cannot store the memory from %s", memory.draft.source)
        return None

    def _remember(self, memory: ExtractedMemory) -> Remembered:
        lineage = reversed(memory.metadata["lineage"])
        context, *parents = zip(lineage, memory.generations, strict=False)
        related_to = tuple(self._related(context, parents))
        draft = msgspec.structs.replace(memory.draft, related_to=related_to)
        [answer] = self._acting_for(memory).remember_many([draft], metadata=memory.metadata)
        _put(self._latest, context, answer.id)
        for each in parents:
            _put(self._children, each, [*self._children.get(each, ()), answer.id][-_MAX_RELATED:])
        return answer

    def _related(self, context: _Context, parents: list[_Context]) -> list[str]:
        known = [self._latest[each] for each in (context, *parents) if each in self._latest]
        wanted = dict.fromkeys([*known, *self._children.get(context, ())])
        # Some may have been forgotten meanwhile.
        pod = self._store.acting_as(self._pod)
        return [each for each in wanted if pod.exists(each)][:_MAX_RELATED]


def _put(contexts: OrderedDict[_Context, T], context: _Context, value: T) -> None:
    """Set a value as the most recent one, and drop the oldest if there are too many."""
    contexts[context] = value
    contexts.move_to_end(context)
    if len(contexts) > _MAX_CONTEXTS:
        contexts.popitem(last=False)
