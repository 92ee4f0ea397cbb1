"""Participants of a pod, their sessions, and the audiences that these form."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from mcpp.filters import Filter, everything
from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.hearing.matcher import Selector
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.rates import Bucket
from mcpp_gateway.core.records import LogEntry


@dataclass(frozen=True, slots=True)
class ParticipantSettings:
    """A configured participant: its id, what it may send and what it may hear."""

    id: str
    capabilities: Capabilities
    multiple: bool = False
    hears: Filter = everything

    @classmethod
    def unknown(cls, id: str) -> "ParticipantSettings":
        """Return the settings of a participant that is no longer configured."""
        return cls(id, Capabilities([]))


@dataclass(slots=True, eq=False)
class Audience:
    """The live sessions that receive the same. `frames` is what the hub owes all of them now."""

    filter: Filter  # of its sessions, within what their participants may hear
    rights: Rights  # of one of these participants; all have the same `hears`
    key: bytes
    sessions: set["Session"] = field(default_factory=set)
    frames: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Member:
    """A participant that is present, with all its sessions."""

    settings: ParticipantSettings
    bucket: Bucket
    sessions: list["Session"] = field(default_factory=list)
    rejoin_until: float | None = None  # without a session since a restart: when it has left
    rate_limited: int = 0  # texts refused for the participant's rate so far (C-16)
    announced: bool = True  # whether the log holds its join
    rights: Rights = field(init=False)
    info: Raw = field(init=False)  # as welcomes and presence show it
    info_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.update(self.settings)

    def update(self, settings: ParticipantSettings) -> None:
        """Apply new settings of the same participant."""
        self.settings = settings
        self.rights = Rights(settings.id, settings.hears)
        patterns = settings.capabilities.patterns
        text = msgspec.json.encode({"id": settings.id, "capabilities": patterns})
        self.info, self.info_bytes = Raw(text), len(text)


@dataclass(slots=True, eq=False)
class Session:
    """One connection's state in the pod.

    While it is behind, it has a position in the log and a queue of direct texts that belong further
    on. When it is live, it has an audience. `peer` belongs to the hub; the pod never reads it.
    """

    member: Member
    filter: Filter
    peer: Any = None
    position: int = 0
    opens_at: int = 0  # the end of the log when it joined: nothing is sent before it is committed
    audience: Audience | None = None
    waiting: deque[tuple[int, bytes, Filter | None]] | None = None  # None: live
    waiting_bytes: int = 0
    wanted: Filter = field(init=False)  # what it asked for last, in force or not yet
    _selector: tuple[Filter, Filter, Selector] | None = None

    def __post_init__(self) -> None:
        self.wanted = self.filter

    @property
    def effective_filter(self) -> Filter:
        """What it receives: its own filter, within what its participant may hear (F-19)."""
        hears = self.member.rights.hears
        if self.filter == everything:
            return hears
        return self.filter if hears == everything else hears & self.filter

    def view(self, entry: LogEntry) -> bytes | None:
        """Return what it receives of an entry that it reads from the log: the same as live."""
        rights = self.member.rights
        if entry.sender == GATEWAY or rights.is_own(entry):
            return rights.view(entry)
        if self.filter == everything and not rights.restricted:
            return entry.text
        selector = self._selector
        if selector is None or selector[0] is not self.filter or selector[1] is not rights.hears:
            new = Selector(self.effective_filter)
            selector = self._selector = (self.filter, rights.hears, new)
        return entry.text if selector[2].passes(entry, entry.lineage) else None
