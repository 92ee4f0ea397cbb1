"""Erasing: which entries lose their content, what stands in their place, and how it is announced.

A tombstone keeps what order, contexts and deduplication need: id, sender, time and context. Its
kind is `tombstone`, so that no participant takes it for a request without arguments.
"""

from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.protocol.codec import decode
from mcpp.protocol.envelope import GATEWAY, PROTOCOL
from mcpp_gateway.core.records import LogEntry
from mcpp_gateway.core.system_envelopes import system, timestamp

TOMBSTONE: Final = "tombstone"

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Erasure:
    """What is to be erased: a context with its descendants, or what a participant sent."""

    context: str | None = None
    participant: str | None = None
    before: float | None = None  # Unix time

    def includes(self, entry: LogEntry, time: float) -> bool:
        """Return whether an entry that was received at a time is to be erased."""
        if entry.erased or entry.sender == GATEWAY or (self.before and time >= self.before):
            return False
        if self.participant is not None and entry.sender != self.participant:
            return False
        lineage = entry.lineage
        return self.context is None or (
            lineage is not None and self.context in (lineage.id, *lineage.ancestors)
        )

    def announcement(self, id: str, entries: int, now: float) -> LogEntry:
        """Return the entry that tells participants what was erased."""
        given = {
            "context": self.context,
            "participant": self.participant,
            "before": self.before,
            "entries": entries,
        }
        payload = {name: value for name, value in given.items() if value is not None}
        text = system(id, kinds.ERASED, payload, now)
        return LogEntry(id, GATEWAY, None, kinds.ERASED, None, text)


def tombstone(entry: LogEntry, time: float) -> LogEntry:
    """Return what stands in the place of an entry that was received at a time."""
    envelope: dict[str, Any] = {
        "protocol": PROTOCOL,
        "id": entry.id,
        "ts": timestamp(time),
        "from": entry.sender,
        "kind": TOMBSTONE,
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
    return msgspec.structs.replace(
        entry, to=None, kind=TOMBSTONE, text=_encode(envelope), erased=True
    )
