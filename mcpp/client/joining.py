"""Connecting to a pod, and staying connected."""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from mcpp.client import local_pod
from mcpp.client.connection import Connection, Options
from mcpp.client.pod import OnGap, Pod
from mcpp.client.tasks import background
from mcpp.errors import ClosedError, PodNotFoundError
from mcpp.filters import Filter
from mcpp.session.session import ClientSession
from mcpp.transports.transport import Connector
from mcpp.transports.websocket import WebSocketConnector

# For a running gateway to learn of a token that was just made for it.
NEW_TOKEN_SECONDS: Final = 5.0


@asynccontextmanager
async def connect(
    url: str | local_pod.Address | None = None,
    *,
    token: str | None = None,
    name: str | None = None,
    filter: Filter | Mapping[str, Any] | None = None,
    last: int | None = None,
    after: str | None = None,
    own: bool = False,
    on_gap: OnGap | None = None,
    options: Options = Options(),  # noqa: B008  (frozen)
) -> AsyncIterator[Pod]:
    """Connect to a pod and stay connected: `async with connect(url, token=token) as pod`.

    Args:
        url: the address, with `token` beside it, or both as an `Address`.
            Of the two, the one that is not given is taken from MCPP_URL or MCPP_TOKEN.
        name: who we expect to be; without a url, also whose token the local pod gives.
        filter: what the gateway should send of what others say; its JSON will do too.
        last: so many envelopes of history first, marked as replayed.
        after: go on after this envelope, as `pod.position` gave it in an earlier life.
        own: iterate over our own envelopes too.
        on_gap: called where envelopes were missed, before the ones that follow.

    Raises PodNotFoundError, JoinError, WrongParticipantError or UnreachableError when it cannot
    begin. Afterwards it reconnects by itself, until a final close code.
    """
    if isinstance(url, local_pod.Address):
        address = url
    elif url is not None and token is not None:
        address = local_pod.Address(url, token)
    elif url is not None or token is not None:
        address = local_pod.complete(url, token)
    elif name is not None:
        address = local_pod.locate(name)
    else:
        raise PodNotFoundError("give a url and a token, or a name for the local pod")
    session = ClientSession(
        name, filter=filter, last=last, after=after, capacity=options.buffer_messages
    )
    connector = WebSocketConnector(
        address.url,
        address.token,
        options.ssl_context,
        options.silence_seconds,
        unknown_until=time.monotonic() + NEW_TOKEN_SECONDS if address.fresh else 0.0,
    )
    async with open_pod(session, connector, own=own, on_gap=on_gap, options=options) as pod:
        yield pod


@asynccontextmanager
async def open_pod(
    session: ClientSession,
    connector: Connector,
    *,
    own: bool = False,
    on_gap: OnGap | None = None,
    options: Options = Options(),  # noqa: B008  (frozen)
) -> AsyncIterator[Pod]:
    """Connect a session through any transport. `connect` is this with a WebSocket."""
    connection = Connection(session, connector, options)
    async with background() as tasks:
        try:
            await tasks.start(connection.keep, tasks)
            yield Pod(connection, own=own, on_gap=on_gap)
            await connection.leave()
        finally:
            connection.end(ClosedError(1000, "we have left"))
