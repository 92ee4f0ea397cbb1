"""Where rolling summaries are stored: one item for each open context of a pod (M-53, M-54).

They lie in a diary of the pod itself. No pack contains that diary, because all participants of a
pod hear its packs, and some of them may not hear every context.
"""

from typing import Final

import msgspec

from mcpp.prompts import ContextSummary
from mcpp_agents.memory.access import Principal
from mcpp_agents.memory.auditing import LogPlace
from mcpp_agents.memory.bus.summaries.rolling import Cover, RollingSummary
from mcpp_agents.memory.requests import BUS_SCHEME
from mcpp_agents.memory.storage.engine import Item
from mcpp_agents.memory.store import MemoryStore

# No participant can have this name (G-09), so no agent's diary is taken for it.
SUMMARIES_DIARY: Final = "system:summaries"
SUMMARY_KIND: Final = "summary"
_AUTHOR: Final = "memory"


class SummaryStore:
    """The rolling summaries of one pod. All methods raise MemoryStoreError."""

    def __init__(self, store: MemoryStore, pod: str) -> None:
        home = f"pod:{pod}"
        self._source = f"{BUS_SCHEME}{pod}/"
        # Without a `home`, unlike the principal of the pod's participants, it has diaries.
        self._principal = Principal(home, frozenset({home}))
        self._store = store.acting_as(self._principal, origin="bus")

    def put(self, summary: RollingSummary, *, last_erasure: float | None = None) -> None:
        """Store a summary in the place of the one before.

        Args:
            summary: the summary.
            last_erasure: the time of the last erasure before what it covers (H-14).
        """
        before = self._find(summary.context)
        content, cover = summary.draft.content, summary.step.cover
        if before is not None and (before.content, _cover(before)) == (content, cover):
            return  # the same log is read again
        place = LogPlace(last_erasure)
        store = self._store.acting_as(self._principal, origin="bus", place=place)
        store.replace(summary.draft, metadata=summary.metadata)

    def drop(self, context: str) -> None:
        """Erase the summary of a context, if there is one."""
        if item := self._find(context):
            self._store.forget(item.id)

    def contexts(self) -> frozenset[str]:
        """Return the contexts that have a summary."""
        return frozenset(self._items())

    def previous(self, summary: RollingSummary) -> tuple[str, str, str]:
        """Return what the stored summary of the same context covers last, its text and author."""
        item = self._find(summary.context)
        if item is None:
            return "", "", ""
        return _cover(item).last, item.content, item.metadata.get("summarized_by", "")

    def read(self) -> list[ContextSummary]:
        """Return all summaries, for prompts."""
        return [
            ContextSummary(
                context=context,
                first=(cover := _cover(item)).first,
                last=cover.last,
                digest=cover.digest,
                text=item.content,
                author=item.metadata.get("summarized_by", _AUTHOR),
            )
            for context, item in self._items().items()
        ]

    def _find(self, context: str) -> Item | None:
        return self._store.stored_under(summary_key(context))

    def _items(self) -> dict[str, Item]:
        return {
            item.metadata["context"]: item
            for item in self._store.diary(SUMMARIES_DIARY, kind=SUMMARY_KIND)
            if item.origin == "bus" and (item.source or "").startswith(self._source)
        }


def summary_key(context: str) -> str:
    """Return the idempotency key of a context's summary: there is one item for each."""
    return f"rolling:{context}"


def _cover(item: Item) -> Cover:
    return msgspec.convert(item.metadata["rolling"], Cover)
