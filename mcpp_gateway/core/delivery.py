"""Delivery: which sessions receive an entry of the log, live or while they catch up.

The live sessions that share a filter form an audience and receive the same bytes. The cost of an
envelope grows with the number of different filters, not of receivers (G-40), and the route is
remembered: most envelopes resemble an earlier one.

A session begins behind: it reads the log with `catch_up` until it has reached the committed end,
and only then joins an audience. So a long absence never fills an outbox. Finding where it begins
may take reading the whole log, too, and is done a piece at a time.
"""

from collections.abc import Generator, Sequence
from typing import Final

import msgspec

from mcpp.filters import Filter, everything
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.effects import (
    POSITION_LOST,
    SLOW_READER,
    Broadcast,
    Broadcasts,
    CatchUp,
    Close,
    Direct,
    Effect,
    Move,
    RelayLive,
    Several,
)
from mcpp_gateway.core.hearing.matcher import Matcher
from mcpp_gateway.core.journal import Journal, UnreadableError, reading_cost
from mcpp_gateway.core.records import LogEntry
from mcpp_gateway.core.sessions import Audience, Member, Session

_REMEMBERED_ROUTES: Final = 4096
_READ_AT_ONCE: Final = 256
# What reading an entry counts for that is not sent: evaluating filters takes time, too.
_UNSENT_BYTES: Final = 256

_encode = msgspec.json.Encoder().encode


class FilterWork:
    """How many parts of filters were evaluated at most, for new kinds, senders and contexts."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts = 0


class Router:
    """Routes entries and answers to sessions. Owns the audiences and the remembered routes."""

    __slots__ = (
        "_by_filter",
        "_journal",
        "_matcher",
        "_members",
        "_routes",
        "_weight",
        "all",
        "outbox_bytes",
        "unfiltered",
        "work",
    )

    def __init__(self, journal: Journal, members: dict[str, Member], outbox_bytes: int) -> None:
        self.all: tuple[Audience, ...] = ()
        self.unfiltered = True  # whether no live session filters anything
        self.work = FilterWork()
        self._matcher: Matcher[Audience] = Matcher()
        self._weight = 0  # parts of the filters of all audiences
        self._journal = journal
        self._members = members
        self.outbox_bytes = outbox_bytes
        self._by_filter: dict[bytes, Audience] = {}
        self._routes: dict[tuple[object, ...], tuple[Audience, ...]] = {}

    # --- live sessions --------------------------------------------------------------------------

    def attach(self, session: Session) -> Audience:
        """Add a session to the audience of its filter: from here on it is live."""
        filter, rights = session.effective_filter, session.member.rights
        key = _encode((rights.hears.to_json(), filter.to_json()))
        audience = self._by_filter.get(key)
        if audience is None:
            audience = self._by_filter[key] = Audience(filter, rights, key)
            self._matcher.add(audience, filter)
            self._weight += self._matcher.weight(audience)
            self._reset_routes()
        audience.sessions.add(session)
        session.audience = audience
        session.waiting = None
        return audience

    def detach(self, session: Session) -> None:
        """Remove a session from its audience, if it is in one."""
        audience = session.audience
        session.opening = None
        if audience is None:
            return
        session.audience = None
        audience.sessions.discard(session)
        if not audience.sessions:
            del self._by_filter[audience.key]
            self._weight -= self._matcher.weight(audience)
            self._matcher.remove(audience)
            self._reset_routes()

    def broadcast(self, entry: LogEntry) -> Effect:
        """Route an entry to the audiences whose filter it passes, and to extra recipients."""
        if self.unfiltered:
            return Broadcast(entry.text, self.all)
        if entry.sender == GATEWAY:
            return self._broadcast_of_gateway(entry)
        route = self._route(entry)
        if len(route) == len(self.all):
            return Broadcast(entry.text, route)
        return Broadcast(entry.text, route, self._extra_recipients(entry, route))

    def broadcast_all(self, entries: Sequence[LogEntry]) -> list[Effect]:
        """Route entries in their order."""
        if self.unfiltered:
            return [Broadcasts([entry.text for entry in entries], self.all)] if entries else []
        return [self.broadcast(entry) for entry in entries]

    def relay(self, entry: LogEntry, sender: Session | None) -> RelayLive:
        """Route a live part to the audiences whose filter it passes, and to no others (G-80)."""
        return RelayLive(entry.text, self.all if self.unfiltered else self._route(entry), sender)

    def answer(self, session: Session, text: bytes, filter: Filter | None) -> Effect:
        """Send a live session a text of its own, and apply the filter that it acknowledges."""
        if filter is None:
            return Direct(session, text)
        self.detach(session)
        session.filter = filter
        return Move(session, self.attach(session), text)

    def move(self, session: Session) -> Effect:
        """Move a live session to the audience that it belongs to, after a change of its rights."""
        self.detach(session)
        return Move(session, self.attach(session))

    def filter_owners(self) -> dict[Member, int]:
        """Return the participants with live filters, with the number of their parts."""
        owners: dict[Member, int] = {}
        for audience in self.all:
            weight = self._matcher.weight(audience)
            for session in audience.sessions if weight else ():
                owners[session.member] = owners.get(session.member, 0) + weight
        return owners

    # --- sessions that are behind ---------------------------------------------------------------

    def queue(self, session: Session, text: bytes, filter: Filter | None) -> Close | None:
        """Keep a text of a session that is behind for its place in the stream (G-17)."""
        assert session.waiting is not None, "only a live session has nothing waiting"
        session.waiting.append((self._journal.end, text, filter))
        session.waiting_bytes += len(text)
        if session.waiting_bytes > self.outbox_bytes:
            return Close(session, SLOW_READER, "outbox full: reading too slowly; resume")
        return None

    def place(
        self, session: Session, after: str | None, last: int | None
    ) -> Generator[int | None, None, tuple[bool, int]]:
        """Set where a new session begins to read; return `resumed` and `replayed` (G-12).

        Yields after each bounded piece of work what it cost, and None before it reads what has to
        be committed first. Raises UnreadableError.
        """
        position = None if after is None else (yield from self._journal.seek(after))
        # Behind the end of its join, the id belongs to an envelope that was accepted since.
        resumed = position is not None and position <= session.opens_at
        session.position = position if resumed and position is not None else session.opens_at
        while (resumed or last) and self._journal.committed < session.opens_at:
            yield None
        if resumed:
            return True, (yield from self._count(session))
        return False, (yield from self._search_back(session, last or 0))

    def catch_up(self, session: Session, max_bytes: int) -> tuple[list[bytes], Effect | None]:
        """Return what a session that is behind gets next, about `max_bytes` of it.

        With it comes a Close if the log no longer holds what the session has not read: a gap is
        reported, never hidden. Without texts comes a Move, if the session has reached the committed
        end and is live; a CatchUp, if it read only what it does not receive; or nothing, if it has
        to wait for a commit. So it goes live only while its connection has room, and its outbox
        begins empty.
        """
        texts: list[bytes] = []
        committed = self._journal.committed
        if committed < session.opens_at:
            return texts, None
        size = 0
        try:
            while size < max_bytes:
                if session.position < self._journal.start:
                    reason = "the log no longer holds the position; resume"
                    return texts, Close(session, POSITION_LOST, reason)
                limit = min(_READ_AT_ONCE, committed - session.position)
                entries = self._journal.read(session.position, limit) if limit > 0 else []
                if not entries:
                    self._take_waiting(session, texts)
                    if texts or session.waiting or not self._may_go_live(session):
                        return texts, None
                    return texts, Move(session, self.attach(session))
                size += self._take_entries(session, entries, texts, max_bytes - size)
        except UnreadableError:
            return texts, Close(session, POSITION_LOST, "the log cannot be read here; rejoin")
        return texts, None if texts else CatchUp(session)

    # --- private --------------------------------------------------------------------------------

    def _route(self, entry: LogEntry) -> tuple[Audience, ...]:
        if type(entry.to) is frozenset:  # G-47: long, and the sender's to invent
            return self._find_route(entry)
        key = (entry.kind, entry.sender, entry.to, entry.lineage)
        route = self._routes.get(key)
        if route is None:
            if len(self._routes) >= _REMEMBERED_ROUTES:
                self._routes.clear()
            route = self._routes[key] = self._find_route(entry)
        return route

    def _find_route(self, entry: LogEntry) -> tuple[Audience, ...]:
        self.work.parts += self._weight
        return tuple(self._matcher.matching(entry, entry.lineage))

    def _broadcast_of_gateway(self, entry: LogEntry) -> Effect:
        """Route an envelope of the gateway: to all, each with what it may hear of it (F-20)."""
        if not entry.contexts:
            return Broadcast(entry.text, self.all)
        audiences: dict[bytes, list[Audience]] = {}
        for audience in self.all:
            text = audience.rights.view(entry)
            if text is not None:
                audiences.setdefault(text, []).append(audience)
        return Several(tuple(Broadcast(text, tuple(some)) for text, some in audiences.items()))

    def _may_go_live(self, session: Session) -> bool:
        """Whether a session's join is in the log: it reads that there, and does not receive it."""
        return session.member.announced and session.live_at <= self._journal.committed

    def _reset_routes(self) -> None:
        self.all = tuple(self._by_filter.values())
        self.unfiltered = all(audience.filter == everything for audience in self.all)
        self._routes.clear()

    def _extra_recipients(
        self, entry: LogEntry, route: tuple[Audience, ...]
    ) -> tuple[Session, ...]:
        """Return the sessions outside the route that receive an entry all the same (F-09)."""
        reached = frozenset(route)
        return tuple(
            session
            for id in {entry.sender, *(entry.to or ())}
            if id in self._members
            for session in self._members[id].sessions
            if session.audience is not None and session.audience not in reached
        )

    def _count(self, session: Session) -> Generator[int, None, int]:
        """Count what a session receives between its position and the end of its join."""
        position, end = session.position, session.opens_at
        count = 0
        while position < end:
            entries = self._read(position, min(position + _READ_AT_ONCE // session.weight, end))
            count += sum([session.view(entry) is not None for entry in entries])
            position += len(entries)
            yield _cost(entries) * session.weight
        return count

    def _search_back(self, session: Session, last: int) -> Generator[int, None, int]:
        """Move a session's position back until it receives `last` entries; return how many."""
        count = 0
        while count < last and session.position > self._journal.start:
            at = max(self._journal.start, session.position - _READ_AT_ONCE // session.weight)
            passing: list[bool] = []
            while at < session.position:
                entries = self._read(at, session.position)
                if at < self._journal.start:
                    break  # retention has deleted some of them meanwhile
                passing += [session.view(entry) is not None for entry in entries]
                at += len(entries)
                yield _cost(entries) * session.weight
            else:
                while passing and count < last:
                    session.position -= 1
                    count += passing.pop()
        return count

    def _read(self, position: int, end: int) -> list[LogEntry]:
        entries = self._journal.read(position, end - position)
        if not entries:
            raise UnreadableError("the log is not complete")
        return entries

    def _take_entries(
        self, session: Session, entries: list[LogEntry], texts: list[bytes], max_bytes: int
    ) -> int:
        size = 0
        for entry in entries:
            size += self._take_waiting(session, texts)
            text = session.view(entry)
            if text is not None:
                texts.append(text)
                size += len(text)
            else:
                size += _UNSENT_BYTES * session.weight
            session.position += 1
            if size >= max_bytes:
                break
        return size

    def _take_waiting(self, session: Session, texts: list[bytes]) -> int:
        """Move the texts whose place has come to `texts` and return their size."""
        size = 0
        while session.waiting and session.waiting[0][0] <= session.position:
            _, text, filter = session.waiting.popleft()
            texts.append(text)
            size += len(text)
            if filter is not None:
                session.filter = filter
        session.waiting_bytes -= size
        return size


def _cost(entries: list[LogEntry]) -> int:
    return reading_cost(len(entries), sum([len(entry.text) for entry in entries]))
