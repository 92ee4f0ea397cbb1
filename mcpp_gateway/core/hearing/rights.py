"""What a participant may hear of the log: its `hears`, and the exceptions of F-09.

Live delivery, replay and whatever else reads the log for a participant ask `Rights.view`. It is the
only place that decides this, so that no path delivers what another withholds.

A `system/context` and a `system/presence` may name several contexts or participants. Such an
envelope is reduced to what the participant may hear of it; its id and its place stay the same.
"""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from mcpp.filters import Filter, everything
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.hearing.matcher import Selector
from mcpp_gateway.core.records import LogEntry

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.decode

# Of a context: whether an envelope in it passes; None: that depends on its kind, sender or `to`.
_ContextTest: TypeAlias = Callable[[Lineage], bool | None]


class Rights:
    """What one participant may hear. Owns its compiled `hears`."""

    __slots__ = ("_context_test", "_selector", "hears", "participant", "restricted")

    def __init__(self, me: str, hears: Filter) -> None:
        self.hears = hears
        self.restricted = hears != everything
        self.participant = me
        self._selector = Selector(hears) if self.restricted else None
        self._context_test = _compile(hears.to_json())

    def view(self, entry: LogEntry) -> bytes | None:
        """Return what the participant may hear of an entry: its text, a part of it, or nothing."""
        if entry.sender == GATEWAY:
            return self._view_of_gateway(entry) if entry.about or entry.contexts else entry.text
        if (
            self._selector is None
            or self.is_own(entry)
            or self._selector.passes(entry, entry.lineage)
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

    def allow_context(self, lineage: Lineage) -> bool:
        """Return whether the participant may know of a context (F-20).

        It may if `hears` does not exclude it whatever the kind, the sender and `to`.
        """
        return not self.restricted or self._context_test(lineage) is not False

    def _view_of_gateway(self, entry: LogEntry) -> bytes | None:
        if entry.about:
            if self.participant not in entry.about:
                return entry.text
            return _reduced(entry.text, "entries", [id != self.participant for id in entry.about])
        if not self.restricted:
            return entry.text
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


def _compile(value: dict[str, Any]) -> _ContextTest:
    """Return the three-valued test of a filter on contexts."""
    if "not" in value:
        part = _compile(value["not"])
        return lambda lineage: None if (found := part(lineage)) is None else not found
    if "any" in value:
        return _decided_by([*map(_compile, value["any"])], decisive=True)
    if "all" in value:
        return _decided_by([*map(_compile, value["all"])], decisive=False)
    if "main" in value:
        return lambda lineage: False
    if "type" in value:
        type = value["type"]
        return lambda lineage: lineage.type == type
    if "context" in value:
        id = value["context"]
        if value.get("descendants"):
            return lambda lineage: lineage.id == id or id in lineage.ancestors
        return lambda lineage: lineage.id == id
    return lambda lineage: None


def _decided_by(parts: list[_ContextTest], *, decisive: bool) -> _ContextTest:
    """Return the test that has the decisive value if one part has, and else that of all parts."""

    def test(lineage: Lineage) -> bool | None:
        found: bool | None = not decisive
        for part in parts:
            value = part(lineage)
            if value is decisive:
                return decisive
            if value is None:
                found = None
        return found

    return test
