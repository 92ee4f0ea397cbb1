"""Participants of a pod, their sessions, and the audiences that these form."""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw

from mcpp.filters import Filter
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.rates import Bucket


@dataclass(frozen=True, slots=True)
class ParticipantSettings:
    """A configured participant: its id and what it may do."""

    id: str
    capabilities: Capabilities
    multiple: bool = False

    @classmethod
    def unknown(cls, id: str) -> "ParticipantSettings":
        """Return the settings of a participant that is no longer configured."""
        return cls(id, Capabilities([]))


@dataclass(slots=True, eq=False)
class Audience:
    """The live sessions with the same filter. `frames` is what the hub owes all of them now."""

    filter: Filter
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
    info: Raw = field(init=False)  # as welcomes and presence show it
    info_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.update(self.settings)

    def update(self, settings: ParticipantSettings) -> None:
        """Apply new settings of the same participant."""
        self.settings = settings
        patterns = settings.capabilities.patterns
        text = msgspec.json.encode({"id": settings.id, "capabilities": patterns})
        self.info, self.info_bytes = Raw(text), len(text)


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
    opening: Generator[int, None, None] | None = None  # yields what each piece of work cost
    position: int = 0
    opens_at: int = 0  # the end of the log when it joined: nothing is sent before it is committed
    audience: Audience | None = None
    waiting: deque[tuple[int, bytes, Filter | None]] | None = None  # None: live
    waiting_bytes: int = 0
