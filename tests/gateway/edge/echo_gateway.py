"""A gateway that echoes texts, as the Autobahn testsuite expects of a WebSocket server.

Only the pods are left out: connections, frames and the protocol are the gateway's own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from websockets.http11 import Request

from mcpp_gateway.edge import server
from mcpp_gateway.edge.connection import ServerConnection
from mcpp_gateway.edge.frames import encode_text
from mcpp_gateway.edge.peer import Peer
from tests.interaction.conftest import SocketPod

LIMITS = {"messages_per_second": 0, "max_message_bytes": 17_000_000, "outbox_bytes": 100_000_000}


class EchoConnection(ServerConnection):
    """A connection that needs no token, and sends nothing of a pod."""

    def write(self, data: bytes) -> None:
        pass

    def _answer(self, method: str, request: Request, rest: bytes) -> None:
        request.headers["Authorization"] = "Bearer token-of-alice-0123456789"
        super()._answer(method, request, rest)


def _echo(peer: Peer, text: bytes, now: float) -> bool:
    transport: Any = peer.transport
    transport._transport.write(encode_text(text))
    return False


@contextmanager
def echo_gateway() -> Iterator[str]:
    """Run the gateway while the block runs; yield its address."""
    with patch.object(server, "ServerConnection", EchoConnection):
        pod = SocketPod(LIMITS)
        try:
            pod.add("alice")
            pod._call(lambda: setattr(pod._gateway.hub, "receive", _echo))
            yield pod.url
        finally:
            pod.close()
