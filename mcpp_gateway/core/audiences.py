"""Audiences: the live sessions with the same filter, and which of them an entry reaches.

The cost of an envelope grows with the number of different filters, not of receivers (G-40). Routes
are cached, because most envelopes resemble an earlier one.
"""

from typing import Final

import msgspec

from mcpp.filters import everything
from mcpp_gateway.core.log import LogEntry
from mcpp_gateway.core.sessions import Audience, Session

_MAX_CACHED_ROUTES: Final = 4096

_encode = msgspec.json.Encoder().encode


class Audiences:
    """The audiences of one pod. Owns them and the cache of routes."""

    __slots__ = ("_by_filter", "_routes", "all", "unfiltered")

    def __init__(self) -> None:
        self.all: tuple[Audience, ...] = ()
        self.unfiltered = True  # no session has a filter
        self._by_filter: dict[bytes, Audience] = {}
        self._routes: dict[tuple[object, ...], tuple[Audience, ...]] = {}

    def attach(self, session: Session) -> Audience:
        """Add a session to the audience of its filter. It is live from here on."""
        key = _encode(session.filter.to_json())
        audience = self._by_filter.get(key)
        if audience is None:
            audience = self._by_filter[key] = Audience(session.filter)
            self._update_routes()
        audience.sessions.add(session)
        session.audience = audience
        session.waiting = None
        return audience

    def detach(self, session: Session) -> None:
        """Remove a session from its audience, if it is in one."""
        audience = session.audience
        if audience is None:
            return
        session.audience = None
        audience.sessions.discard(session)
        if not audience.sessions:
            del self._by_filter[_encode(session.filter.to_json())]
            self._update_routes()

    def route(self, entry: LogEntry) -> tuple[Audience, ...]:
        """Return the audiences whose filter an entry passes."""
        if type(entry.to) is frozenset:  # G-47: long and chosen by the sender
            return self._find_route(entry)
        key = (entry.kind, entry.sender, entry.to, entry.lineage)
        route = self._routes.get(key)
        if route is None:
            if len(self._routes) >= _MAX_CACHED_ROUTES:
                self._routes.clear()
            route = self._routes[key] = self._find_route(entry)
        return route

    def _find_route(self, entry: LogEntry) -> tuple[Audience, ...]:
        return tuple(
            audience for audience in self.all if audience.filter.matches(entry, entry.lineage)
        )

    def _update_routes(self) -> None:
        self.all = tuple(self._by_filter.values())
        self.unfiltered = all(audience.filter == everything for audience in self.all)
        self._routes.clear()
