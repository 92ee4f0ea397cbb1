"""The HTTP server for A2A clients, and the participant behind it.

`/NAME` is a participant's endpoint (JSON-RPC of A2A 1.0 and 0.3), and its card is at
`/NAME/.well-known/agent-card.json`. The card of the first participant is also at the root.
"""

import hmac
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import anyio
import uvicorn
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.types import AgentCard
from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH
from starlette.applications import Starlette
from starlette.routing import BaseRoute

import mcpp
from mcpp.client.local_pod import Address
from mcpp.client.tasks import background
from mcpp_agents.a2a.serving.agent_cards import agent_card
from mcpp_agents.a2a.serving.board import TaskBoard
from mcpp_agents.a2a.serving.request_handler import ParticipantHandler

MAX_BODY_BYTES: Final = 1024 * 1024
BODY_SECONDS: Final = 30.0
_MAX_CONNECTIONS: Final = 256
_LOCAL_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
_DESCRIPTION: Final = "Serves participants to A2A clients."

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


async def serve(
    address: Address,
    participants: Sequence[str],
    listener: socket.socket,
    *,
    name: str,
    url: str,
    token: str | None,
) -> None:
    """Join a pod and serve participants of it until Ctrl-C or SIGTERM.

    Raises KeyboardInterrupt in the end, and what joining raises.
    """
    options = mcpp.Options(keep_trying=True)
    connecting = mcpp.connect(address, name=name, own=True, live=True, options=options)
    async with connecting as pod, background() as tasks:
        board = TaskBoard(pod)
        await board.recover()
        tasks.start_soon(questioner(name, board).serve, pod)
        app = application(pod, board, participants, url=url, token=token)
        config = uvicorn.Config(
            app,
            log_level="warning",
            lifespan="off",
            ws="none",
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=2,
        )
        await uvicorn.Server(config).serve(sockets=[listener])


def questioner(name: str, board: TaskBoard) -> mcpp.Participant:
    """Return the participant that asks in the name of A2A clients, and passes questions on."""
    agent = mcpp.Participant(name, description=_DESCRIPTION)
    agent.observe(board.observe)
    agent.method("elicitation/create")(board.elicit)
    return agent


def application(
    pod: mcpp.Pod,
    board: TaskBoard,
    participants: Sequence[str],
    *,
    url: str,
    token: str | None,
) -> App:
    """Return the ASGI application.

    Args:
        pod: the pod, joined as the questioner.
        board: its tasks.
        participants: whom to serve.
        url: the address at which clients reach this server.
        token: what clients have to send; without one, only this machine's own names are served.
    """
    routes: list[BaseRoute] = []
    for place, participant in enumerate(participants):
        path = f"/{quote(participant)}"

        async def card(_: AgentCard, participant: str = participant, path: str = path) -> AgentCard:
            known = await pod.cards.get(participant)
            return agent_card(participant, known, f"{url}{path}", has_token=token is not None)

        handler = ParticipantHandler(participant, board)
        base = agent_card(participant, None, f"{url}{path}", has_token=token is not None)
        routes += create_jsonrpc_routes(handler, path, enable_v0_3_compat=True)
        routes += create_agent_card_routes(base, card, f"{path}{AGENT_CARD_WELL_KNOWN_PATH}")
        if place == 0:
            routes += create_agent_card_routes(base, card)
    return _Guard(Starlette(routes=routes), token)


class _Guard:
    """Checks who asks, and bounds what they send, before anything reads it."""

    def __init__(self, app: App, token: str | None) -> None:
        self._app = app
        self._token = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        is_card = scope["method"] == "GET" and scope["path"].endswith(AGENT_CARD_WELL_KNOWN_PATH)
        if self._token is None and not _is_local(headers.get(b"host", b"")):
            # Against pages of other sites that reach this machine by a name of theirs.
            await _refuse(send, 421, "this server is for this machine only")
        elif self._token is None and b"origin" in headers:
            # A page of any site can send simple requests to this machine.
            await _refuse(send, 403, "pages are served only with a token")
        elif self._token is not None and not (is_card or self._knows(headers)):
            await _refuse(send, 401, "send the token: Authorization: Bearer TOKEN")
        else:
            try:
                body = await _read_body(receive)
            except (_TooLongError, TimeoutError) as error:
                status = 413 if isinstance(error, _TooLongError) else 408
                await _refuse(send, status, f"a body has at most {MAX_BODY_BYTES} bytes")
                return
            await self._app(scope, _replay(body, receive), send)

    def _knows(self, headers: dict[bytes, bytes]) -> bool:
        assert self._token is not None
        given = headers.get(b"authorization", b"")
        scheme, _, rest = given.partition(b" ")
        return hmac.compare_digest(scheme.capitalize() + b" " + rest.strip(), self._token)


class _TooLongError(Exception):
    """The body of a request is too long."""


async def _read_body(receive: Receive) -> bytes:
    """Return the whole body. Raises TimeoutError and _TooLongError."""
    body = bytearray()
    with anyio.fail_after(BODY_SECONDS):
        while True:
            event = await receive()
            body += event.get("body", b"")
            if len(body) > MAX_BODY_BYTES:
                raise _TooLongError
            if event["type"] != "http.request" or not event.get("more_body"):
                return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a function that yields the body first, and then what `receive` does."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_event() -> Any:
        return pending.pop() if pending else await receive()

    return next_event


def _is_local(host: bytes) -> bool:
    name = host.decode("latin-1").lower()
    return any(name == each or name.startswith(f"{each}:") for each in _LOCAL_HOSTS)


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"connection", b"close")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})
