"""Participants of a pod, their sessions, and the audiences that these form."""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

from mcpp.filters import Filter, everything
from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.hearing.filter_counts import filter_weight
from mcpp_gateway.core.hearing.matcher import Selector
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.limits import NO_LIMITS, ParticipantLimits, PodLimits
from mcpp_gateway.core.rates import Bucket
from mcpp_gateway.core.records import LogEntry

# Work that a session begins with. Yields what each piece of it cost, or None if it has to wait
# until everything before the session's join is committed.
Opening: TypeAlias = Generator[int | None, None, None]


@dataclass(frozen=True, slots=True)
class ParticipantSettings:
    """A participant: its id, what it may send and hear, whether it is a person, its limits."""

    id: str
    capabilities: Capabilities
    multiple: bool = False
    hears: Filter = everything
    person: bool = False
    limits: ParticipantLimits = NO_LIMITS  # in place of the pod's
    at_most: ParticipantLimits = NO_LIMITS  # of a token: never above the others

    def limits_in(self, limits: PodLimits) -> PodLimits:
        """Return the limits of a pod as they are for this participant."""
        return self.at_most.within(self.limits.over(limits))

    @classmethod
    def unknown(cls, id: str) -> "ParticipantSettings":
        """Return the settings of a participant that is no longer configured."""
        return cls(id, Capabilities([]))


def participant_info(settings: ParticipantSettings, card: str | None) -> bytes:
    """Return a participant as welcomes, presence and updates show it."""
    info: dict[str, Any] = {"id": settings.id, "capabilities": settings.capabilities.patterns}
    return msgspec.json.encode(info if card is None else {**info, "card": card})


@dataclass(slots=True, eq=False)
class Audience:
    """The live sessions that receive the same.

    `frames` is what the hub owes all of them now, `live` what it sends to those that have room, but
    for the session that it is from.
    """

    filter: Filter  # of its sessions, within what their participants may hear
    rights: Rights  # of one of these participants; all have the same `hears`
    key: bytes
    sessions: set["Session"] = field(default_factory=set)
    frames: list[bytes] = field(default_factory=list)
    live: list[tuple[bytes, "Session | None"]] = field(default_factory=list)
    live_bytes: int = 0


@dataclass(slots=True, eq=False, weakref_slot=True)
class Member:
    """A participant that is present, with all its sessions."""

    settings: ParticipantSettings
    bucket: Bucket
    sessions: list["Session"] = field(default_factory=list)
    rejoin_until: float | None = None  # without a session since a restart: when it has left
    rate_limited: int = 0  # texts refused for the participant's rate so far (C-16)
    announced: bool = True  # whether the log holds its join
    card: str | None = None  # the digest of its card
    rights: Rights = field(init=False)
    info: Raw = field(init=False)  # as welcomes and presence show it
    info_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.update(self.settings)

    def update(self, settings: ParticipantSettings) -> None:
        """Apply new settings of the same participant."""
        self.settings = settings
        self.rights = Rights(settings.id, settings.hears)
        text = participant_info(settings, self.card)
        self.info, self.info_bytes = Raw(text), len(text)


class _CompiledFilter(NamedTuple):
    filter: Filter
    rights: Rights
    selector: Selector | None  # of the filter within the rights; None: everything
    weight: int


@dataclass(slots=True, eq=False)
class Session:
    """One connection's state in the pod.

    It begins without a place: `opening` finds its position in the log, a piece of work at a time.
    While it is behind, it has that position and a queue of direct texts that belong further on.
    When it is live, it has an audience. `peer` belongs to the hub; the pod never reads it.
    """

    member: Member
    filter: Filter
    peer: Any = None
    joined: float = 0.0
    opening: Opening | None = None
    position: int = 0
    opens_at: int = 0  # the end of the log when it joined: nothing is sent before it is committed
    live_at: int = 0  # the position that must be committed before it goes live
    audience: Audience | None = None
    waiting: deque[tuple[int, bytes, Filter | None]] | None = None  # None: live
    waiting_bytes: int = 0
    wanted: Filter = field(init=False)  # what it asked for last, in force or not yet
    _known: _CompiledFilter | None = None

    def __post_init__(self) -> None:
        self.wanted = self.filter

    @property
    def effective_filter(self) -> Filter:
        """What it receives: its own filter, within what its participant may hear (F-19)."""
        hears = self.member.rights.hears
        if self.filter == everything:
            return hears
        return self.filter if hears == everything else hears & self.filter

    @property
    def weight(self) -> int:
        """How many times the work of reading an entry its filter takes."""
        return self._compiled().weight

    def view(self, entry: LogEntry) -> bytes | None:
        """Return what it receives of an entry that it reads from the log: the same as live."""
        rights = self.member.rights
        selector = self._compiled().selector
        if entry.sender == GATEWAY or selector is None or rights.is_own(entry):
            return rights.view(entry)
        if entry.erased and rights.view(entry) is None:
            return None
        return entry.text if selector.passes(entry, entry.lineage) else None

    def _compiled(self) -> _CompiledFilter:
        known, rights = self._known, self.member.rights
        if known is None or known.filter is not self.filter or known.rights is not rights:
            effective = self.effective_filter
            selector = None if effective == everything else Selector(effective)
            weight = 1 + filter_weight(self.filter)
            known = self._known = _CompiledFilter(self.filter, rights, selector, weight)
        return known
