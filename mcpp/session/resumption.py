"""Resumption: a participant gets each envelope once and in order, over any number of connections.

`position` is the id of the last envelope that was put into the inbox in the log's order; the next
connection resumes after it. Three mechanisms keep the promise:

- The gateway announces how many envelopes it replays first. The connection is live after them.
- Ids that were seen are dropped: a gateway that lost its log gets resent envelopes a second time.
- The inbox is bounded. Once it is full, the rest of the connection is not kept and `position`
  stays: a new connection, opened when there is room again, replays the rest.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from mcpp.buffers import MAX_BUFFER_BYTES, BoundedQueue
from mcpp.filters import Filter
from mcpp.protocol.envelope import Envelope

# Once the gateway no longer knows a position, everything its log still holds was missed: ask for
# as much of it as a gateway keeps by default.
MISSED_MESSAGES: Final = 10_000
_SEEN_IDS: Final = 2 * MISSED_MESSAGES


@dataclass(frozen=True, slots=True)
class Join:
    """What to request when a connection is opened."""

    filter: Filter | None = None
    after: str | None = None
    last: int | None = None

    def query(self) -> dict[str, str]:
        """Return the request as URL query parameters."""
        query: dict[str, str] = {}
        if self.after is not None:
            query["after"] = self.after
        if self.last is not None:
            query["last"] = str(self.last)
        if self.filter is not None:
            query["filter"] = msgspec.json.encode(self.filter.to_json()).decode()
        return query


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """An envelope for the participant; `replayed` if it is history from before it joined."""

    envelope: Envelope
    replayed: bool


@dataclass(frozen=True, slots=True)
class HistoryEnd:
    """The history from before joining ends here. It follows the last replayed envelope."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Envelopes were missed here. `lost_log` says whether the gateway itself has lost its log."""

    lost_log: bool


class Resumption:
    """Position, replay and inbox of one participant. Owns the envelopes not yet taken."""

    __slots__ = (
        "_end_of_replay",
        "_history_left",
        "_inbox",
        "_last",
        "_reported",
        "_resuming",
        "_seen",
        "_seen_before",
        "history",
        "overflowed",
        "position",
        "replaying",
    )

    def __init__(
        self,
        *,
        last: int | None = None,
        after: str | None = None,
        capacity: int = 1024,
        capacity_bytes: int = MAX_BUFFER_BYTES,
    ) -> None:
        self.position = after
        self.history = 0  # how many envelopes from before the first join are replayed
        self.replaying = 0  # how many replayed envelopes are still to come on this connection
        self.overflowed = False  # whether the inbox was full on this connection
        self._last = last
        self._inbox = BoundedQueue[Delivery | HistoryEnd | Gap](capacity, capacity_bytes)
        self._resuming = False
        self._history_left = 0  # of `history`, over as many connections as it takes
        self._end_of_replay: str | None = None
        # Two generations: when the younger one is full, it replaces the older one.
        self._seen: set[str] = set()
        self._seen_before: set[str] = set()
        self._reported: set[str] = set()  # acted on while the inbox was full; they come again

    def begin(self, *, joined_before: bool) -> tuple[str | None, int | None]:
        """Begin a new connection and return what to request: `after` and `last`."""
        self.overflowed = False
        self.replaying = 0
        self._resuming = self.position is not None
        first = not joined_before or not self._resuming
        return self.position, self._last if first else MISSED_MESSAGES

    def welcome(
        self,
        replayed: int,
        *,
        position: str | None,
        resumed: bool,
        lost_log: bool,
        joined_before: bool,
    ) -> None:
        """Process a connection's welcome; if it does not continue the last one, report a gap."""
        if (self._resuming or joined_before) and (lost_log or not resumed):
            self._inbox.put_anyway(Gap(lost_log))
            self._history_left = 0
            self._reported.clear()
        if not self._resuming:
            self.history = self._history_left = replayed
        self.replaying = replayed
        self._end_of_replay = position
        if not replayed:
            self._finish_replay()

    @property
    def is_history(self) -> bool:
        """Whether the next envelope is from before the first join."""
        return self._history_left > 0

    @property
    def is_crowded(self) -> bool:
        """Whether the inbox is half full, so that reading more of a replay should wait."""
        return not self.overflowed and self._inbox.is_filled(1 / 2)

    @property
    def has_room_again(self) -> bool:
        """Whether the inbox overflowed on this connection and has been read since."""
        return self.overflowed and not self._inbox.is_filled(1 / 8)

    def take(self) -> Delivery | HistoryEnd | Gap | None:
        """Return the next item in the inbox, or None if it is empty."""
        return self._inbox.take() if self._inbox else None

    def is_new(self, id: str) -> bool:
        """Return whether an envelope was neither seen nor reported before."""
        return id not in self._seen and id not in self._seen_before and id not in self._reported

    def receive(self, envelope: Envelope, times_sent: int, size_bytes: int) -> bool:
        """Put the next envelope of the connection into the inbox, unless it was seen before.

        `times_sent` is how often it was sent, if it is one of ours; `size_bytes` is the length of
        its text. Return False if there was no room: then it comes again on a later connection.
        """
        id = envelope.id
        kept = True
        if id not in self._seen and id not in self._seen_before:
            if self.overflowed or not self._inbox.has_room(size_bytes):
                self.overflowed = True
                kept = False
            else:
                self._seen.add(id)
                if len(self._seen) >= _SEEN_IDS:
                    self._seen_before, self._seen = self._seen, set()
                if self._reported:
                    self._reported.discard(id)
                # The gateway answers a repetition with the logged envelope, out of log order.
                if times_sent <= 1:
                    self.position = id
                history = self._history_left > 0
                self._inbox.put_anyway(Delivery(envelope, history), size_bytes)
                if history:
                    self._count_history()
        if self.replaying:
            self.replaying -= 1
            if not self.replaying:
                self._finish_replay()
        return kept

    def receive_live(self, part: Envelope, size_bytes: int) -> None:
        """Put a live part into the inbox, if there is plenty of room.

        It is not in the log: it is no position, and what is dropped here does not come again.
        """
        if not self.overflowed and not self._inbox.is_filled(1 / 2):
            self._inbox.put_anyway(Delivery(part, False), size_bytes)

    def skip(self) -> None:
        """Count an unreadable envelope."""
        if self.replaying:
            self.replaying -= 1
            if self._history_left:
                self._count_history()

    def mark_reported(self, id: str) -> None:
        """Remember an envelope that was acted on although there was no room for it."""
        if len(self._reported) >= _SEEN_IDS:
            self._reported.clear()  # bounds memory where the inbox is never read
        self._reported.add(id)

    def _count_history(self) -> None:
        self._history_left -= 1
        if not self._history_left:
            self._inbox.put_anyway(HistoryEnd())

    def _finish_replay(self) -> None:
        # The replay may have ended with envelopes that the filter withheld.
        if self._end_of_replay is not None and not self.overflowed:
            self.position = self._end_of_replay
