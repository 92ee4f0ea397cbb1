"""A2A servers for tests: an agent made with the SDK, and participants served by ours."""

import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import uvicorn
from a2a.client import Client, ClientConfig, create_client
from a2a.client.card_resolver import A2ACardResolver
from a2a.helpers import get_message_text, new_text_message, new_text_part
from a2a.helpers.proto_helpers import new_data_part, new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    Message,
    Role,
    SendMessageRequest,
    StreamResponse,
)
from httpx import AsyncClient
from starlette.applications import Starlette

import mcpp
from mcpp.client.tasks import background
from mcpp_agents.a2a.serving.board import TaskBoard
from mcpp_agents.a2a.serving.server import application, questioner
from tests.interaction.conftest import SocketPod

VERSIONS = ("1.0", "0.3")


class EmbeddedServer(uvicorn.Server):
    """A server that leaves the signals of the test run alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def serving(make_app: Any) -> AsyncIterator[str]:
    """Serve an application, made for its own address, for the duration of the block."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(
            make_app(url), log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        server = EmbeddedServer(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                yield url
            finally:
                server.should_exit = True


class ScriptedExecutor(AgentExecutor):
    """An agent that does what the first word of a message says."""

    def __init__(self) -> None:
        self.go_on = anyio.Event()
        self.working = anyio.Event()
        self.cancelled: list[str] = []
        self.messages: list[Message] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message = context.message
        assert message is not None
        self.messages.append(message)
        word = get_message_text(message).partition(" ")[0]
        if word == "hello":
            await event_queue.enqueue_event(new_text_message("Hello yourself."))
            return
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(message))
        await updater.start_work(new_text_message("I am on it."))
        await self._work(word, get_message_text(message), updater)

    async def _work(self, word: str, text: str, updater: TaskUpdater) -> None:
        match word:
            case "count":
                await updater.add_artifact([new_text_part("one, ")], "a")
                self.working.set()
                await self.go_on.wait()
                await updater.add_artifact([new_text_part("two")], "a", append=True)
                await updater.add_artifact([new_text_part("And more.")], "b")
                await updater.complete()
            case "ask":
                await updater.requires_input(new_text_message("Which colour?"))
            case "login":
                await updater.requires_auth(new_text_message("Sign in at the door."))
            case "fail":
                await updater.failed(new_text_message("It broke."))
            case "slow":
                self.working.set()
                await anyio.sleep_forever()
            case "data":
                await updater.add_artifact([new_data_part({"sum": 5, "of": [2, 3]})], "a")
                await updater.complete()
            case _:
                await updater.add_artifact([new_text_part(f"You said {text}.")], "a")
                await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.cancelled.append(context.task_id or "")
        updater = TaskUpdater(event_queue, context.task_id or "", context.context_id or "")
        await updater.cancel()


def card_of(url: str, versions: Sequence[str] = VERSIONS, *, streaming: bool = True) -> AgentCard:
    """Return the card of the scripted agent, in these versions of the protocol."""
    return AgentCard(
        name="Remote Painter",
        description="Paints on request.",
        version="1",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version)
            for version in versions
        ],
        capabilities=AgentCapabilities(streaming=streaming),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[
            AgentSkill(id="paint", name="Paint", description="Paints.", tags=["art"]),
            AgentSkill(id="mix", name="Mix", description="Mixes colours.", tags=["art"]),
        ],
    )


@asynccontextmanager
async def remote_agent(
    agent: ScriptedExecutor, version: str, *, streaming: bool = True
) -> AsyncIterator[str]:
    """Serve the scripted agent with the SDK, in one version of the protocol."""

    def make(url: str) -> Starlette:
        card = card_of(url, [version], streaming=streaming)
        handler = DefaultRequestHandler(agent, InMemoryTaskStore(), card)
        routes = create_jsonrpc_routes(handler, "/", enable_v0_3_compat=version == "0.3")
        return Starlette(routes=[*routes, *create_agent_card_routes(card)])

    async with serving(make) as url:
        yield url


@asynccontextmanager
async def served(
    pod: SocketPod, *names: str, token: str | None = None, name: str = "a2a"
) -> AsyncIterator[str]:
    """Serve participants of a pod with our server; yield the server's URL."""
    async with pod.connect(name, own=True, live=True) as joined, background() as tasks:
        board = TaskBoard(joined)
        await board.recover()
        tasks.start_soon(questioner(name, board).serve, joined)

        def make(url: str) -> Any:
            return application(joined, board, names, url=url, token=token)

        async with serving(make) as url:
            yield url


@asynccontextmanager
async def client_of(
    url: str, version: str = "1.0", *, streaming: bool = True, token: str | None = None
) -> AsyncIterator[Client]:
    """Open the SDK's client for an agent, in one version of the protocol."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with AsyncClient(timeout=30, headers=headers) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        chosen = [each for each in card.supported_interfaces if each.protocol_version == version]
        del card.supported_interfaces[:]
        card.supported_interfaces.extend(chosen)
        config = ClientConfig(httpx_client=http, streaming=streaming)
        yield await create_client(card, config)


def asking(text: str, **ids: str) -> SendMessageRequest:
    """Return a request with a user's text."""
    return SendMessageRequest(message=new_text_message(text, role=Role.ROLE_USER, **ids))


async def events_of(client: Client, text: str, **ids: str) -> list[StreamResponse]:
    """Send a text and return all events of the answer."""
    return [event async for event in client.send_message(asking(text, **ids))]


def parrot() -> mcpp.Participant:
    """Return a participant that repeats what it is told, aloud."""
    agent = mcpp.Participant("parrot", description="Repeats.")

    @agent.on("chat", to_me=True)
    async def repeat(message: mcpp.Message) -> None:
        async with message.stream() as out:
            await out.write("You said: ")
            await out.write(message.text)

    @agent.tool
    async def fly(where: str) -> str:
        """Fly somewhere."""
        return where

    return agent
