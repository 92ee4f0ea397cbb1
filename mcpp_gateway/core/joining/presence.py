"""Presence: joins and leaves that are to be announced, one by one or in batches (G-33, G-64)."""

from typing import Final

from mcpp_gateway.core.rates import Bucket, Rate
from mcpp_gateway.core.sessions import Member
from mcpp_gateway.core.system_envelopes import ANNOUNCED_BYTES

# G-64: presence is logged no more often, so that joining and leaving cannot fill the log.
_ANNOUNCEMENTS: Final = Rate.per_second(10, 20)


class PresenceQueue:
    """Joins and leaves that the log does not hold yet. Owns their order and their rate."""

    def __init__(self) -> None:
        self._events: list[tuple[str, Member]] = []
        self._joined: list[Member] = []
        self._waiting_bytes = 0  # that the events will take, about
        self._bucket = Bucket(_ANNOUNCEMENTS)

    @property
    def has_room(self) -> bool:
        """Whether one envelope can announce what waits, so that it takes little of a reserve."""
        return self._waiting_bytes < ANNOUNCED_BYTES

    def join(self, member: Member) -> None:
        """Add the join of a member; it is not `announced` until the log holds it."""
        member.announced = False
        self._joined.append(member)
        self._add("join", member)

    def leave(self, member: Member) -> None:
        """Add the leave of a member."""
        self._add("leave", member)

    def wait(self, now: float) -> float | None:
        """Return the seconds until an announcement is due; None if there is nothing to announce."""
        return self._bucket.wait(now) if self._events else None

    def take(self, now: float) -> list[list[tuple[str, Member]]]:
        """Remove all events and return them, those of one envelope together."""
        events, self._events = self._events, []
        self._waiting_bytes = 0
        groups: list[list[tuple[str, Member]]] = []
        size = ANNOUNCED_BYTES
        for event in events:
            if size >= ANNOUNCED_BYTES:
                groups.append([])
                size = 0
                self._bucket.charge(1, now)
            groups[-1].append(event)
            size += event[1].info_bytes
        return groups

    def set_announced(self, end: int) -> None:
        """Take note that the log holds all joins before a position."""
        for member in self._joined:
            member.announced = True
            for session in member.sessions:
                session.live_at = end
        self._joined.clear()

    def drop(self) -> None:
        """Forget all events, as if they had been announced."""
        self._events.clear()
        self._waiting_bytes = 0
        self.set_announced(0)

    def _add(self, event: str, member: Member) -> None:
        self._events.append((event, member))
        self._waiting_bytes += member.info_bytes
