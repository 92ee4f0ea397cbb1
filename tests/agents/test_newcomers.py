"""What a newcomer costs a pod of ten: a presence and a card, and only the lists that are needed."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest
from mcp import Client

import mcpp
from mcpp import HistoryMessage, Participant, kinds
from mcpp.client.tasks import background
from mcpp.prompts import Prompt
from mcpp.testing import MemoryPod
from mcpp_agents.cli.joining import PERSON
from mcpp_agents.mcp_server.server import PodServer
from mcpp_agents.mcp_server.shared_pod import SharedPod
from mcpp_agents.model import ModelAgent, ProviderError, Reply
from tests.agents.processes import BOUND

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


class NoModel:
    """A model that is not asked anything here."""

    async def reply(self, prompt: Prompt, *arguments: object) -> Reply:
        raise ProviderError("there is no model")


def worker(name: str) -> Participant:
    agent = Participant(name, description="Works.")

    @agent.tool
    async def work(text: str) -> str:
        """Work on a text."""
        return text

    return agent


@asynccontextmanager
async def pod_of_ten(pod: MemoryPod) -> AsyncIterator[mcpp.Pod]:
    """Run four agents with tools, three models and three people, one of whom is yielded."""
    async with AsyncExitStack() as stack:
        names = ("anna", "ben", "eve")
        people = [await stack.enter_async_context(pod.connect(name)) for name in names]
        anna = people[0]
        for person in people:
            await person.cards.announce(PERSON)
        for number in range(4):
            await stack.enter_async_context(pod.run(worker(f"worker{number}")))
        for number in range(3):
            model = ModelAgent(f"model{number}", NoModel())
            await stack.enter_async_context(pod.run(model.participant))
        await wait_for_cards(anna, 10)
        yield anna


async def wait_for_cards(pod: mcpp.Pod, count: int) -> None:
    with anyio.fail_after(BOUND):
        while len(pod.participants) < count:
            await anext(pod)
    for name in list(pod.participants):
        assert await pod.cards.get(name, wait_seconds=BOUND) is not None


async def logged_after(pod: mcpp.Pod, mark: mcpp.Envelope) -> list[HistoryMessage]:
    return [message async for message in pod.history(after=mark.id)]


@pytest.mark.rule("P-72")
async def test_nobody_is_asked_for_tools_because_of_a_newcomer(pod: MemoryPod) -> None:
    newcomer = worker("newcomer")
    async with pod_of_ten(pod) as anna:
        mark = await anna.send("chat", "before")
        async with pod.run(newcomer), pod.connect("dan") as dan:
            await dan.cards.announce(PERSON)
            await wait_for_cards(anna, 12)
            # Longer than models wait for the cards of newcomers before they ask.
            with anyio.move_on_after(1):
                async for _ in anna:
                    pass
            logged = await logged_after(anna, mark)
    assert [message.kind for message in logged].count(kinds.PRESENCE) == 2
    assert [message.kind for message in logged].count(kinds.UPDATE) == 2
    assert len(logged) == 4
    assert sum(message.envelope.size_bytes for message in logged) < 3_000


@pytest.mark.rule("P-72")
async def test_a_client_s_list_of_tools_asks_only_those_who_have_some(pod: MemoryPod) -> None:
    async with pod_of_ten(pod) as anna:
        mark = await anna.send("chat", "before")
        async with pod.connect("ide", own=True) as ide, background() as tasks:
            shared = SharedPod(ide)
            server = PodServer(shared)
            tasks.start_soon(shared.listen)
            async with Client(server.server, cache=None) as client:
                names = {tool.name for tool in (await client.list_tools()).tools}
                await client.list_tools()
                await client.list_prompts()
                await client.list_resources()
                await client.list_resource_templates()
            logged = await logged_after(anna, mark)
    assert {f"worker{number}__work" for number in range(4)} <= names
    requests = [message for message in logged if message.kind.startswith("mcp/request")]
    assert sorted(message.to or () for message in requests) == [(f"worker{n}",) for n in range(4)]
    assert {message.kind for message in requests} == {"mcp/request:tools/list"}
