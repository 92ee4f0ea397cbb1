"""Erasing: which entries lose their content, what stands in their place, and how it is announced.

A tombstone keeps what order, contexts and deduplication need: id, sender, time and context, and of
a conclusion how the context ended. Its kind is `tombstone`, so that no participant takes it for a
request without arguments.
"""

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import msgspec

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.outcomes import outcome_of
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import GATEWAY, PROTOCOL
from mcpp_gateway.core.joining.cards import updated_participant
from mcpp_gateway.core.records import UNKNOWN_TYPE, LogEntry, NamedState, State
from mcpp_gateway.core.system_envelopes import system, timestamp

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What is to be erased: a context with its descendants, or what a participant sent."""

    context: str | None = None
    participant: str | None = None
    before: float | None = None  # Unix time
    by: str | None = None  # the operator who erases, for the audit

    def includes(self, entry: LogEntry, time: float) -> bool:
        """Return whether an entry that was received at a time is to be erased."""
        if entry.card:
            return self.includes_card(updated_participant(entry), time)
        if entry.erased or entry.sender == GATEWAY:
            return False
        if self.before is not None and time >= self.before:
            return False
        if self.participant is not None and entry.sender != self.participant:
            return False
        lineage = entry.lineage
        return self.context is None or (
            lineage is not None and self.context in (lineage.id, *lineage.ancestors)
        )

    def includes_card(self, participant: str, time: float) -> bool:
        """Return whether the card that a participant had at a time is to be erased."""
        is_early = self.before is None or time < self.before
        return self.context is None and participant == self.participant and is_early

    def without_cards(self, state: State) -> State:
        """Return a state without the cards that are to be erased."""
        kept = [one for one in state.cards if not self.includes_card(one.participant, state.time)]
        if len(kept) == len(state.cards):
            return state
        return msgspec.structs.replace(state, cards=tuple(kept))

    def without_names(self, state: State, public: Container[str], private: Container[str]) -> State:
        """Return a state without the namings that are to be erased.

        Args:
            state: the state.
            public: the blobs that no other entry names for all.
            private: the blobs that no other entry names for its addressees.
        """
        named = self._without(state.named, public)
        privately = self._without(state.named_privately, private)
        if (named, privately) == (state.named, state.named_privately):
            return state
        return msgspec.structs.replace(state, named=named, named_privately=privately)

    def _without(
        self, named: tuple[NamedState, ...], gone: Container[str]
    ) -> tuple[NamedState, ...]:
        kept = []
        for each in named:
            grants = [one for one in each.grants if not self.includes(one.entry(), one.time)]
            if each.hash not in gone:
                kept.append(msgspec.structs.replace(each, grants=tuple(grants)))
        return tuple(kept)

    def erased_context(self, entry: LogEntry) -> Lineage | None:
        """Return the context that is erased, as far as an entry in it or below it tells."""
        lineage = entry.lineage
        if self.context is None or lineage is None:
            return None
        if lineage.id == self.context:
            return lineage
        at = lineage.ancestors.index(self.context)
        return Lineage(self.context, UNKNOWN_TYPE, lineage.ancestors[at + 1 :])

    def announcement(
        self, id: str, entries: int, now: float, contexts: tuple[Lineage, ...] = ()
    ) -> LogEntry:
        """Return the entry that tells participants what was erased.

        It reaches those that may know of all these contexts (F-20).
        """
        given = {
            "context": self.context,
            "participant": self.participant,
            "before": self.before,
            "entries": entries,
            "by": self.by,
        }
        payload = {name: value for name, value in given.items() if value is not None}
        text = system(id, kinds.ERASED, payload, now)
        return LogEntry(id, GATEWAY, None, kinds.ERASED, None, text, contexts=contexts)


def tombstone(entry: LogEntry, time: float) -> LogEntry:
    """Return what stands in the place of an entry that was received at a time.

    The announcement of a card stays, without the card: it has only the digest.
    """
    if entry.card:
        return msgspec.structs.replace(entry, to=None, card=b"")
    envelope: dict[str, Any] = {
        "protocol": PROTOCOL,
        "id": entry.id,
        "ts": timestamp(time),
        "from": entry.sender,
        "kind": kinds.TOMBSTONE,
    }
    try:
        original = decode(entry.text)
    except DecodeError:
        original = None
    if original is not None and original.correlation_id is not None:
        envelope["correlation_id"] = original.correlation_id
    context = None if original is None else original.context
    if context is not None:
        members = {"id": context.id, "type": context.type, "parent": context.parent}
        envelope["context"] = {name: value for name, value in members.items() if value is not None}
    envelope["payload"] = None
    if original is not None and original.kind == kinds.CONCLUSION:
        envelope["payload"] = {"outcome": outcome_of(original)}
    return msgspec.structs.replace(
        entry,
        to=None,
        kind=kinds.TOMBSTONE,
        text=_encode(envelope),
        erased=True,
        attachments=(),
        private=(),
    )
