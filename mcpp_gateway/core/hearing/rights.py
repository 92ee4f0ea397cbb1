"""What a participant may hear of the log: its `hears`, and the exceptions of F-09.

Live delivery, replay and whatever else reads the log for a participant ask `Rights.view`. It is the
only place that decides this, so that no path delivers what another withholds.

A `system/context` and a `system/presence` may name several contexts or participants. Such an
envelope is reduced to what the participant may hear of it; its id and its place stay the same.

Of a context, the kind, the sender and `to` of the envelopes in it are unknown; of a tombstone, the
kind and `to` of what was erased. There `hears` is evaluated in three-valued logic. A context may be
known unless that says no; a tombstone may be heard only if it says yes.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from mcpp import kinds
from mcpp.filters import Filter, everything
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.hearing.matcher import Selector
from mcpp_gateway.core.records import UNKNOWN_TYPE, LogEntry

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode

# Whether an envelope in a context (None: the main one) from a sender (None: unknown) passes. None:
# that depends on its kind, on `to`, or on the sender.
_PartialTest: TypeAlias = Callable[[Lineage | None, str | None], bool | None]


class Rights:
    """What one participant may hear. Owns its compiled `hears`."""

    __slots__ = ("_partial_test", "_selector", "hears", "participant", "restricted")

    def __init__(self, me: str, hears: Filter) -> None:
        self.hears = hears
        self.restricted = hears != everything
        self.participant = me
        self._selector = Selector(hears) if self.restricted else None
        self._partial_test = _compile(hears.to_json())

    def view(self, entry: LogEntry) -> bytes | None:
        """Return what the participant may hear of an entry: its text, a part of it, or nothing."""
        if entry.sender == GATEWAY:
            return self._view_of_gateway(entry) if entry.about or entry.contexts else entry.text
        if (
            self._selector is None
            or self.is_own(entry)
            or (self._allow_tombstone(entry) if entry.erased else self._passes(entry))
        ):
            return entry.text
        return None

    def read(self, entry: LogEntry) -> LogEntry | None:
        """Return an entry as the participant may read it back, or None.

        That is what it may hear, and presence about itself: history is not a replay (H-06).
        """
        if entry.about and entry.sender == GATEWAY:
            return entry
        text = self.view(entry)
        if text is None or text is entry.text:
            return None if text is None else entry
        return msgspec.structs.replace(entry, text=text)

    def is_own(self, entry: LogEntry) -> bool:
        """Return whether an entry reaches the participant whatever the filters (F-09)."""
        return entry.sender == self.participant or (
            entry.to is not None and self.participant in entry.to
        )

    def may_read_card(self, participant: str) -> bool:
        """Return whether it may read a participant's card: its own, and of those it may hear.

        A card is treated as something that its participant has said in the main context.
        """
        if self._selector is None or participant == self.participant:
            return True
        said = LogEntry("", participant, None, kinds.CARD, None, b"")
        return self._selector.passes(said, None)

    def allow_context(self, lineage: Lineage) -> bool:
        """Return whether the participant may know of a context (F-20).

        It may if `hears` does not exclude it whatever the kind, the sender and `to`.
        """
        return not self.restricted or self._partial_test(lineage, None) is not False

    def _passes(self, entry: LogEntry) -> bool:
        return self._selector is None or self._selector.passes(entry, entry.lineage)

    def _allow_tombstone(self, entry: LogEntry) -> bool:
        return self._partial_test(entry.lineage, entry.sender) is True

    def _allow_erased(self, lineage: Lineage) -> bool:
        """Return whether the participant may know of an erased context, whatever its type was."""
        if lineage.type != UNKNOWN_TYPE:
            return self.allow_context(lineage)
        id, ancestors = lineage.id, lineage.ancestors
        possible = (None, *_types(self.hears.to_json()))
        return all(self.allow_context(Lineage(id, type, ancestors)) for type in possible)

    def _view_of_gateway(self, entry: LogEntry) -> bytes | None:
        if entry.about:
            if self.participant not in entry.about:
                return entry.text
            return _reduced(entry.text, "entries", [id != self.participant for id in entry.about])
        if not self.restricted:
            return entry.text
        if entry.kind == kinds.ERASED:
            return entry.text if all(map(self._allow_erased, entry.contexts)) else None
        return _reduced(entry.text, "contexts", [*map(self.allow_context, entry.contexts)])


def _reduced(text: bytes, name: str, kept: list[bool]) -> bytes | None:
    """Return an envelope of the gateway with those members of a list that may be heard."""
    if all(kept):
        return text
    if not any(kept):
        return None
    envelope = _decode(text)
    items = envelope["payload"][name]
    envelope["payload"][name] = [item for item, is_kept in zip(items, kept, strict=True) if is_kept]
    return _encode(envelope)


def _types(value: dict[str, Any]) -> set[str]:
    """Return the types of contexts that a filter tells apart."""
    if "type" in value:
        return {value["type"]}
    inner = [value["not"]] if "not" in value else value.get("any") or value.get("all") or []
    return set().union(*map(_types, inner))


def _compile(value: dict[str, Any]) -> _PartialTest:
    """Return the three-valued test of a filter."""
    if "not" in value:
        part = _compile(value["not"])
        return lambda context, sender: (
            None if (found := part(context, sender)) is None else not found
        )
    if "any" in value:
        return _decided_by([*map(_compile, value["any"])], decisive=True)
    if "all" in value:
        return _decided_by([*map(_compile, value["all"])], decisive=False)
    if "main" in value:
        return lambda context, sender: context is None
    if "type" in value:
        type = value["type"]
        return lambda context, sender: context is not None and context.type == type
    if "context" in value:
        id = value["context"]
        if value.get("descendants"):
            return lambda context, sender: (
                context is not None and (context.id == id or id in context.ancestors)
            )
        return lambda context, sender: context is not None and context.id == id
    if "from" in value:
        name = value["from"]
        return lambda context, sender: None if sender is None else sender == name
    return lambda context, sender: None


def _decided_by(parts: list[_PartialTest], *, decisive: bool) -> _PartialTest:
    """Return the test that has the decisive value if one part has, and else that of all parts."""

    def test(context: Lineage | None, sender: str | None) -> bool | None:
        found: bool | None = not decisive
        for part in parts:
            value = part(context, sender)
            if value is decisive:
                return decisive
            if value is None:
                found = None
        return found

    return test
