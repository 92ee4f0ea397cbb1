"""Connecting to a pod and staying connected."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from mcpp.client import local_pod
from mcpp.client.connection import Connection, Options
from mcpp.client.pod import OnGap, Pod
from mcpp.client.tasks import background
from mcpp.errors import ClosedError, PodNotFoundError
from mcpp.filters import Filter
from mcpp.session.session import ClientSession
from mcpp.transports.several import SeveralGateways, split_addresses
from mcpp.transports.tls import trust
from mcpp.transports.token_sources import TokenSource
from mcpp.transports.transport import Connector
from mcpp.transports.websocket import WebSocketConnector


@asynccontextmanager
async def connect(
    url: str | local_pod.Address | None = None,
    *,
    token: TokenSource | None = None,
    name: str | None = None,
    filter: Filter | Mapping[str, Any] | None = None,
    last: int | None = None,
    after: str | None = None,
    own: bool = False,
    live: bool = False,
    on_gap: OnGap | None = None,
    options: Options = Options(),  # noqa: B008  (frozen)
) -> AsyncIterator[Pod]:
    """Connect to a pod and stay connected: `async with connect(url, token=token) as pod`.

    Args:
        url: the gateway's address, or those of several gateways of the same pod, separated by
            commas; or an `Address`, which includes the token. By default, MCPP_URL.
        token: the participant's token, or a function that returns the present one; it is called for
            every connection. By default, MCPP_TOKEN, MCPP_TOKEN_FILE or MCPP_TOKEN_COMMAND.
        name: the participant that the token must belong to. Without url and token, and without
            MCPP_URL and MCPP_TOKEN, the participant to join the local pod (`mcpp up`) as.
        filter: which envelopes from others the gateway should send, as a Filter or as JSON.
        last: how many envelopes of history to replay first, marked as replayed.
        after: resume after this envelope, an earlier `pod.position`.
        own: also iterate over the participant's own envelopes.
        live: also iterate over live parts (`live/text`), which are in no log; see `mcpp.live`.
        on_gap: called where envelopes were missed, before the ones that follow.
        options: buffer sizes, timeouts and reconnection.

    Raises PodNotFoundError, JoinError, WrongParticipantError or UnreachableError if it cannot
    connect. Afterwards it reconnects by itself until the gateway closes it with a final code.
    """
    if isinstance(url, local_pod.Address):
        address = url
    elif url is not None and token is not None:
        address = local_pod.Address(url, token)
    elif url is not None or token is not None:
        address = local_pod.complete(url, token)
    elif name is not None:
        address = local_pod.locate(name)
    elif local_pod.is_named(os.environ):
        address = local_pod.complete(None, None)
    else:
        hint = "pass a url and a token, set MCPP_URL and MCPP_TOKEN, or pass a name to join"
        raise PodNotFoundError(f"{hint} the local pod")
    session = ClientSession(
        name,
        filter=filter,
        last=last,
        after=after,
        live=live,
        capacity=options.buffer_messages,
        capacity_bytes=options.buffer_bytes,
    )
    ca = address.ca or os.environ.get("MCPP_CA")
    connectors = [
        WebSocketConnector(
            url, address.token, options.ssl_context or trust(url, ca), options.silence_seconds
        )
        for url in split_addresses(address.url)
    ]
    for each in connectors:  # now, not when the others are gone
        each.check_address()
    connector = connectors[0] if len(connectors) == 1 else SeveralGateways(connectors)
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
            await tasks.start(connection.run, tasks)
            # The background tasks end first: what they send on cancellation needs the connection.
            async with background() as started:
                yield Pod(connection, own=own, on_gap=on_gap, tasks=started)
            await connection.flush()
        finally:
            connection.close(ClosedError(1000, "the client left"))
