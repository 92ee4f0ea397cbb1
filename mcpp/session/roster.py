"""The participants that are present, within bounds (P-42).

A gateway bounds both participants and contexts. A client does not rely on it: what it knows of a
pod must not grow with what a faulty or hostile gateway announces.
"""

from typing import Final

import msgspec

from mcpp.payloads import ParticipantInfo

# Ten times what a gateway is measured with, and 1.6 kB for each of them.
MAX_PARTICIPANTS: Final = 10_000
MAX_ROSTER_BYTES: Final = 16 * 1024 * 1024


class Roster:
    """Who is present, with capabilities. Beyond its bounds, further participants are not listed.

    A welcome's list is parsed when it is first needed: a thousand clients that come back after a
    restart would otherwise spend most of the time on each other's capabilities.
    """

    __slots__ = ("_bytes", "_known", "_sizes", "_unread", "changes", "is_complete")

    def __init__(self) -> None:
        self._known: dict[str, ParticipantInfo] = {}
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._unread: bytes | None = None  # the list of the welcome
        self.is_complete = False  # whether all that are present are listed
        self.changes = 0  # how often it has changed so far

    @property
    def participants(self) -> dict[str, ParticipantInfo]:
        """The participants that are present, by name."""
        if self._unread is not None:
            self._read(self._unread)
        return self._known

    def reset(self, participants: msgspec.Raw, *, is_complete: bool) -> None:
        """Start again from the list of a welcome, as JSON; it may have left some out."""
        self._known, self._sizes, self._bytes = {}, {}, 0
        self._unread = bytes(participants)
        self.is_complete = is_complete
        self.changes += 1

    def add(self, info: ParticipantInfo, size_bytes: int) -> None:
        """Add a participant that has joined, told by a text of this length."""
        self.remove(info.id)
        has_room = len(self._known) < MAX_PARTICIPANTS
        if has_room and self._bytes + size_bytes <= MAX_ROSTER_BYTES:
            self._known[info.id] = info
            self._sizes[info.id] = size_bytes
            self._bytes += size_bytes
        else:
            self.is_complete = False
        self.changes += 1

    def update(self, info: ParticipantInfo, size_bytes: int) -> None:
        """Replace what is known of a participant, if it is listed."""
        if info.id in self.participants:
            self._bytes += size_bytes - self._sizes[info.id]
            self._known[info.id] = info
            self._sizes[info.id] = size_bytes
            self.changes += 1

    def remove(self, id: str) -> None:
        """Remove a participant that has left, if it is listed."""
        if self.participants.pop(id, None) is not None:
            self._bytes -= self._sizes.pop(id)
        self.changes += 1

    def _read(self, text: bytes) -> None:
        self._unread = None
        try:
            found = msgspec.json.decode(text, type=list[ParticipantInfo])
        except msgspec.MsgspecError:
            self.is_complete = False
            return  # a gateway that breaks its own protocol
        share = max(1, len(text) // (len(found) or 1))
        room = min(MAX_PARTICIPANTS, MAX_ROSTER_BYTES // share)
        self._known = {info.id: info for info in found[:room]}
        self._sizes = dict.fromkeys(self._known, share)
        self._bytes = share * len(self._known)
        self.is_complete = self.is_complete and len(found) <= room
