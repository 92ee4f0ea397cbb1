"""Subscriptions of participants to the resources of a server, which knows one subscriber only."""

from dataclasses import dataclass, field
from typing import Final

import anyio

from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure

_MAX_RESOURCES: Final = 1000
_MAX_URI_CHARS: Final = 4096

SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"


@dataclass(slots=True)
class Subscriptions:
    """Who is subscribed to which resource. Owns the event of the next change of the resources."""

    _subscribers: dict[str, set[str]] = field(default_factory=dict)
    changed: anyio.Event = field(default_factory=anyio.Event)

    @property
    def uris(self) -> list[str]:
        """The resources with a subscriber."""
        return list(self._subscribers)

    def change(self, method: str, uri: object, participant: str) -> bool:
        """Subscribe or unsubscribe a participant; return whether the server has to know.

        Raises Failure for an address that is not valid, and for too many.
        """
        if not isinstance(uri, str) or len(uri) > _MAX_URI_CHARS:
            raise Failure(rpc.INVALID_PARAMS, "$.uri: is not an address")
        known = self._subscribers.get(uri, set())
        if method == SUBSCRIBE:
            if not known and len(self._subscribers) >= _MAX_RESOURCES:
                raise Failure(rpc.INTERNAL_ERROR, "too many subscriptions")
            is_news = not known
            self._subscribers.setdefault(uri, set()).add(participant)
        else:
            is_news = known == {participant}
            known.discard(participant)
            if not known:
                self._subscribers.pop(uri, None)
        if is_news:
            self.changed.set()
            self.changed = anyio.Event()
        return is_news
