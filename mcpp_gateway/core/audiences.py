"""Audiences: the live sessions that share a filter, and which of them an entry reaches.

The cost of an envelope grows with the number of different filters, not of receivers (G-40), and the
answer is remembered: most envelopes resemble one that came before.
"""

from typing import Final

import msgspec

from mcpp.filters import everything
from mcpp_gateway.core.log import LogEntry
from mcpp_gateway.core.sessions import Audience, Session

_REMEMBERED_ROUTES: Final = 4096

_encode = msgspec.json.Encoder().encode


class Audiences:
    """Owns the audiences of one pod and what is remembered of their routes."""

    __slots__ = ("_by_filter", "_routes", "all", "plain")

    def __init__(self) -> None:
        self.all: tuple[Audience, ...] = ()
        self.plain = True  # nobody filters anything
        self._by_filter: dict[bytes, Audience] = {}
        self._routes: dict[tuple[object, ...], tuple[Audience, ...]] = {}

    def attach(self, session: Session) -> Audience:
        """Bring a session into the audience of its filter: from here on it is live."""
        key = _encode(session.filter.to_json())
        audience = self._by_filter.get(key)
        if audience is None:
            audience = self._by_filter[key] = Audience(session.filter)
            self._reroute()
        audience.sessions.add(session)
        session.audience = audience
        session.waiting = None
        return audience

    def detach(self, session: Session) -> None:
        """Take a session out of its audience, if it is in one."""
        audience = session.audience
        if audience is None:
            return
        session.audience = None
        audience.sessions.discard(session)
        if not audience.sessions:
            del self._by_filter[_encode(session.filter.to_json())]
            self._reroute()

    def route(self, entry: LogEntry) -> tuple[Audience, ...]:
        """Return the audiences whose filter an entry passes."""
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
        return tuple(
            audience for audience in self.all if audience.filter.matches(entry, entry.lineage)
        )

    def _reroute(self) -> None:
        self.all = tuple(self._by_filter.values())
        self.plain = all(audience.filter == everything for audience in self.all)
        self._routes.clear()
