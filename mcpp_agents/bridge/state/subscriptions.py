"""Subscriptions of participants to the resources of a server, which knows one subscriber only."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import anyio
from mcp import Client, MCPError
from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost
from mcp.shared.subscriptions import ResourceUpdated, event_to_notification

from mcpp.client.tasks import background
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.bridge.state.notifications import RESOURCE_UPDATED

_MAX_RESOURCES: Final = 1000
_MAX_URI_CHARS: Final = 4096

SUBSCRIBE: Final = "resources/subscribe"
UNSUBSCRIBE: Final = "resources/unsubscribe"

OnChange = Callable[[str, str], None]

logger = logging.getLogger("mcpp.bridge")


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


async def receive_changes(
    client: Client, subscriptions: Subscriptions, on_change: OnChange
) -> None:
    """Receive the changes of a server of a newer revision, until it does not report them.

    Begins again when other resources are subscribed to. `on_change` gets the method of a
    notification and the address of the resource, if it is about one.
    """
    while True:
        with anyio.CancelScope() as listening:
            async with background() as tasks:
                tasks.start_soon(_cancel_after, subscriptions.changed, listening)
                await _listen(client, subscriptions, on_change)
        if not listening.cancelled_caught:
            return


async def _listen(client: Client, subscriptions: Subscriptions, on_change: OnChange) -> None:
    try:
        changes = client.listen(
            tools_list_changed=True,
            resources_list_changed=True,
            prompts_list_changed=True,
            resource_subscriptions=subscriptions.uris,
        )
        async with changes as events:
            async for event in events:
                if isinstance(event, ResourceUpdated):
                    on_change(RESOURCE_UPDATED, event.uri)
                else:
                    on_change(event_to_notification(event, {}).method, "")
    except (ListenNotSupportedError, SubscriptionLost, MCPError) as error:
        logger.debug("the server does not report changes: %s", error)


async def _cancel_after(event: anyio.Event, scope: anyio.CancelScope) -> None:
    await event.wait()
    scope.cancel()
