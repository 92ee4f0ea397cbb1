"""Subscriptions of MCP clients to resources and changes, in both eras of MCP."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.session import ServerSession
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)

from mcpp import CallError, ConnectionLostError, Kind, Message, Pod, Refused, kinds
from mcpp.client.tasks import background
from mcpp.protocol import rpc
from mcpp_agents.mcp_server.client_calls import Context, session_of
from mcpp_agents.mcp_server.offers import PROMPTS, RESOURCES

UPDATED: Final = str(Kind(kinds.NOTIFICATION, "notifications/resources/updated"))
_ANNOUNCE_SECONDS: Final = 1.0
# Clients that are notified of changes; the least recent are forgotten.
_MAX_CLIENTS: Final = 1000
_MAX_RESOURCES: Final = 1000
_UNSUBSCRIBE_SECONDS: Final = 2.0

_CHANGES: Final = (
    ("tools/list", ToolsListChanged, ServerSession.send_tool_list_changed),
    (RESOURCES, ResourcesListChanged, ServerSession.send_resource_list_changed),
    (PROMPTS, PromptsListChanged, ServerSession.send_prompt_list_changed),
)

OwnerOf = Callable[[str], Awaitable[str | None]]
Forward = Callable[[Context, str, str], Awaitable[Any]]


class ClientSubscriptions:
    """Which clients are told of changes, and of which resources. Owns the lists of both."""

    def __init__(self, pod: Pod, owner_of: OwnerOf, forward: Forward) -> None:
        self._pod = pod
        self._owner_of = owner_of
        self._forward = forward
        self._subscribers: dict[str, set[object]] = {}  # sessions, and streams of changes
        self._clients: dict[str | None, ServerSession] = {}
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._changed: set[str] = set()
        self._has_changed = anyio.Event()

    def remember(self, context: Context) -> None:
        """Tell a client of changes from now on."""
        id = session_of(context)
        self._clients.pop(id, None)
        self._clients[id] = context.session
        if len(self._clients) > _MAX_CLIENTS:
            del self._clients[next(iter(self._clients))]

    def changed(self, lists: tuple[str, ...]) -> None:
        """Note that lists have changed, by their methods."""
        if lists:
            self._changed |= set(lists)
            self._has_changed.set()

    async def announce_changes(self) -> None:
        """Notify clients of changes, at most once a second."""
        while True:
            await self._has_changed.wait()
            self._has_changed = anyio.Event()
            changed, self._changed = self._changed, set()
            for method, event, notify in _CHANGES:
                if method in changed:
                    await self._bus.publish(event())
                    for session in list(self._clients.values()):
                        await _tell(session, notify)
            await anyio.sleep(_ANNOUNCE_SECONDS)

    async def updated(self, message: Message) -> None:
        """Tell the clients that are subscribed to a resource of its participant's update."""
        params = message.payload.get("params") if isinstance(message.payload, dict) else None
        uri = params.get("uri") if isinstance(params, dict) else None
        if not isinstance(uri, str) or uri not in self._subscribers:
            return
        if message.sender != await self._owner_of(uri):
            return
        await self._bus.publish(ResourceUpdated(uri))
        subscribers = self._subscribers.get(uri, set())
        for id, session in list(self._clients.items()):
            if id in subscribers:
                await _tell(session, lambda session: session.send_resource_updated(uri))

    async def subscribe(self, context: Context, uri: str, owner: str) -> None:
        """Subscribe a client's session. Raises MCPError."""
        subscriber = session_of(context)
        self._add(uri, subscriber)  # before an update can arrive
        try:
            await self._forward(context, owner, "resources/subscribe")
        except MCPError:
            self._drop(uri, subscriber)
            raise

    async def unsubscribe(self, context: Context, uri: str) -> None:
        """Unsubscribe a client's session. Raises MCPError."""
        owner = await self._owner_of(uri)
        if self._drop(uri, session_of(context)) and owner is not None:
            await self._forward(context, owner, "resources/unsubscribe")

    async def serve_listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        """Serve a stream of changes (the newer revisions' way to subscribe)."""
        uris = [str(uri) for uri in params.notifications.resource_subscriptions or ()]
        stream = object()
        for uri in uris:
            self._add(uri, stream)
        try:
            async with background() as tasks:
                for uri in uris:
                    tasks.start_soon(self._request, "resources/subscribe", uri)
                return await self._listen(context, params)
        finally:
            left = [uri for uri in uris if self._drop(uri, stream)]
            with anyio.move_on_after(_UNSUBSCRIBE_SECONDS, shield=bool(left)):
                for uri in left:
                    await self._request("resources/unsubscribe", uri)

    async def _request(self, method: str, uri: str) -> None:
        owner = await self._owner_of(uri)
        if owner is not None:
            with suppress(CallError, Refused, ConnectionLostError):
                await self._pod.request(owner, method, {"uri": uri})

    def _add(self, uri: str, subscriber: object) -> None:
        if uri not in self._subscribers and len(self._subscribers) >= _MAX_RESOURCES:
            raise MCPError(rpc.INTERNAL_ERROR, "too many subscriptions")
        self._subscribers.setdefault(uri, set()).add(subscriber)

    def _drop(self, uri: str, subscriber: object) -> bool:
        """Remove a subscriber; return whether it was the last one."""
        subscribers = self._subscribers.get(uri, set())
        subscribers.discard(subscriber)
        if not subscribers:
            self._subscribers.pop(uri, None)
        return not subscribers


async def _tell(session: ServerSession, notify: Callable[[ServerSession], Awaitable[None]]) -> None:
    if session.client_params is not None:
        with suppress(MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            await notify(session)
