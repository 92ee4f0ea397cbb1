"""A remote A2A agent: its card, and messages to it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from typing import Any, Final, Self, cast
from urllib.parse import urlsplit

import anyio
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import (
    AgentCard,
    AgentInterface,
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    SendMessageRequest,
    StreamResponse,
)
from a2a.utils.errors import A2AError

from mcpp_agents.a2a.joining.http_client import MAX_RESPONSE_BYTES, new_client, origin_of
from mcpp_agents.a2a.joining.remote_reply import RemoteAgentError, RemoteReply, ReplyUpdate
from mcpp_agents.cli.display import one_line

_BINDINGS: Final = ["JSONRPC", "HTTP+JSON"]
_CARD_SECONDS: Final = 30.0
_CANCEL_SECONDS: Final = 5.0
_FIRST_SECONDS: Final = 5.0
# Between questions about a task that is not streamed, or whose stream was lost.
_FIRST_DELAY_SECONDS: Final = 0.2
_LAST_DELAY_SECONDS: Final = 5.0
_MAX_FAILURES: Final = 5
# What the SDK raises for answers that are not as the protocol says.
_ODD_ANSWERS: Final = (ValueError, TypeError, AttributeError, LookupError, RecursionError)

logger = logging.getLogger("mcpp.a2a")


class RemoteAgent:
    """An agent at an address. `open` yields one; it keeps its connections for the block."""

    def __init__(self, card: AgentCard, client: Client) -> None:
        self.card = card
        self._client = client

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        origins: Iterable[str] = (),
        max_bytes: int = MAX_RESPONSE_BYTES,
    ) -> AsyncIterator[Self]:
        """Fetch an agent's card, and talk to the agent in the block.

        Args:
            url: the agent's address, or that of its card.
            headers: sent with every request.
            origins: further origins at which the card may say that the agent is.
            max_bytes: of one response.

        Raises RemoteAgentError.
        """
        allowed = [url, *origins]
        async with new_client(allowed, headers or {}, max_bytes=max_bytes) as http:
            with _translated(), anyio.fail_after(_CARD_SECONDS):
                card = await _resolver(http, url).get_agent_card()
            _keep_origins(card, allowed)
            config = ClientConfig(httpx_client=http, supported_protocol_bindings=_BINDINGS)
            with _translated():
                client = ClientFactory(config).create(card)
            yield cls(card, client)

    async def send(self, message: Message, reply: RemoteReply) -> AsyncIterator[ReplyUpdate]:
        """Send a message; yield what is new, until the agent has finished or waits for something.

        `reply` gets all of it. Raises RemoteAgentError.
        """
        message.task_id, message.context_id = reply.task_id, reply.context_id
        reply.state = None
        request = SendMessageRequest(message=message)
        with _translated(unless=lambda: reply.is_working):
            # The SDK declares an iterator and returns a generator.
            stream = cast(Any, self._client.send_message(request))
            async with aclosing(stream) as events:
                first = await _first(events)
                if first is not None:
                    yield reply.take(first)
                async for event in events:
                    yield reply.take(event)
        if not reply.is_answered:
            raise RemoteAgentError("the agent answered nothing")
        delay, failures = _FIRST_DELAY_SECONDS, 0
        while reply.is_working:
            await anyio.sleep(delay)
            delay = min(2 * delay, _LAST_DELAY_SECONDS)
            try:
                with _translated():
                    task = await self._client.get_task(GetTaskRequest(id=reply.task_id))
            except RemoteAgentError:
                failures += 1
                if failures >= _MAX_FAILURES:
                    raise
            else:
                failures = 0
                yield reply.take(StreamResponse(task=task))

    async def cancel(self, task_id: str) -> None:
        """Ask the agent to stop working on a task, even while this task is cancelled."""
        limit = anyio.move_on_after(_CANCEL_SECONDS, shield=True)
        with suppress(RemoteAgentError), limit, _translated():
            await self._client.cancel_task(CancelTaskRequest(id=task_id))


async def _first(events: AsyncIterator[StreamResponse]) -> StreamResponse | None:
    """Return the first event, for which a cancellation waits a few seconds.

    It names the task: without that, the agent could not be told to stop.
    """
    first: StreamResponse | None = None
    with anyio.CancelScope(shield=True) as patience:
        loop = asyncio.get_running_loop()
        timer = loop.call_later(_FIRST_SECONDS, setattr, patience, "shield", False)
        try:
            first = await anext(events, None)
        finally:
            timer.cancel()
    return first


def _resolver(http: httpx.AsyncClient, url: str) -> A2ACardResolver:
    if urlsplit(url).path.endswith(".json"):
        base, _, path = url.rpartition("/")
        return A2ACardResolver(http, base, path)
    return A2ACardResolver(http, url)


def _keep_origins(card: AgentCard, allowed: Iterable[str]) -> None:
    """Remove the addresses that are elsewhere than where the card was found.

    Raises RemoteAgentError if none is left.
    """
    known = set(map(origin_of, allowed))
    usable: list[AgentInterface] = []
    others: list[AgentInterface] = []
    for interface in card.supported_interfaces:
        with suppress(ValueError):
            if interface.protocol_binding in _BINDINGS:
                is_known = origin_of(interface.url) in known
                (usable if is_known else others).append(interface)
    if others and not usable:
        place = one_line(others[0].url, 200)
        raise RemoteAgentError(f"its card says that it is at {place}; see --allow-origin")
    del card.supported_interfaces[:]
    card.supported_interfaces.extend(usable)


@contextmanager
def _translated(unless: Any = lambda: False) -> Iterator[None]:
    """Raise what goes wrong in the SDK as RemoteAgentError; log it instead if `unless` says so.

    A remote agent sends what it wants, and the SDK raises errors of many kinds for that.
    """
    try:
        yield
    except RemoteAgentError:
        raise
    except TimeoutError:
        raise RemoteAgentError("the agent does not answer") from None
    except (A2AError, httpx.HTTPError, *_ODD_ANSWERS) as error:
        problem = one_line(str(error) or type(error).__name__, 300)
        if not unless():
            raise RemoteAgentError(problem) from None
        logger.info("the stream of a task was lost: %s", problem)
