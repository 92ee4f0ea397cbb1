"""Cards of agents: what a pod's participants offer, without asking each of them."""

import anyio
import pytest

import mcpp
from mcpp import kinds
from mcpp.errors import EncodeError
from mcpp.testing import MemoryPod
from mcpp_agents.toolbox import Toolbox
from tests.interaction.conftest import AnyPod

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]


def librarian() -> mcpp.Participant:
    agent = mcpp.Participant("librarian", description="Finds books.", instructions="Ask politely.")

    @agent.tool
    async def search(word: str) -> str:
        """Find books by a word."""
        return word

    @agent.prompt
    def review(title: str) -> str:
        """Review a book."""
        return title

    @agent.resource("book://{title}")
    def read(title: str) -> str:
        return title

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        if message.is_for_me:
            await message.reply("yes")

    return agent


async def card_of(pod: mcpp.Pod, name: str) -> mcpp.Card:
    card = await pod.cards.get(name, wait_seconds=10)
    assert card is not None
    return card


@pytest.mark.rule("P-72", "G-86")
async def test_an_agent_announces_what_it_offers(harness: AnyPod) -> None:
    async with harness.connect("anna") as anna, harness.run(librarian()):
        card = await card_of(anna, "librarian")
        assert card.description == "Finds books."
        assert card.instructions == "Ask politely."
        assert card.tools["search"].description == "Find books by a word."
        assert list(card.prompts) == ["review"]
        assert list(card.resources) == ["book://{title}"]
        assert card.answers == ("chat",)
        assert [(tool.participant, tool.name) for tool in await anna.tools()] == [
            ("librarian", "search")
        ]
        assert await anna.cards.get("anna") is None
        assert await anna.cards.get("nobody") is None
        # It is no message to iterate over.
        await anna.ask("librarian", "Are you there?")
        assert (await anext(anna)).kind == kinds.PRESENCE


@pytest.mark.rule("P-72")
async def test_a_card_is_announced_again_where_the_gateway_does_not_have_it() -> None:
    pod = MemoryPod()
    async with pod.connect("anna") as anna, pod.run(librarian()):
        await card_of(anna, "librarian")
        pod.cut("librarian")
        pod.restart()  # its log is lost, and with it the cards
        assert (await card_of(anna, "librarian")).description == "Finds books."
        await anna.cards.announce({"description": "A person."})
        assert (await card_of(anna, "anna")).description == "A person."
        await anna.cards.announce(None)
        assert await anna.cards.get("anna") is None
        with pytest.raises(EncodeError, match="longer than 65536"):
            await anna.cards.announce({"x": "y" * 70_000})


async def test_a_card_of_any_form_is_read_as_far_as_possible(harness: AnyPod) -> None:
    async with harness.connect("odd") as odd, harness.connect("anna") as anna:
        await odd.cards.announce(
            {"description": 1, "tools": [{"name": "ok"}, {"name": 2}, "x"], "answers": [1, "chat"]}
        )
        card = await card_of(anna, "odd")
        assert (card.description, list(card.tools), card.answers) == ("", ["ok"], ("chat",))
        await odd.cards.announce({"tools": "none"})
        assert (await card_of(anna, "odd")).tools == {}


async def test_many_tools_fit_into_a_card() -> None:
    agent = mcpp.Participant("large")
    for number in range(400):

        @agent.tool(name=f"tool_{number}")
        async def tool() -> None:
            """Do it."""

        tool.__doc__ = "x" * 1_000
    pod = MemoryPod()
    async with pod.connect("anna") as anna, pod.run(agent):
        card = await card_of(anna, "large")
        assert len(card.tools) == 400


@pytest.mark.rule("P-45", "P-72")
async def test_who_has_no_tools_is_not_asked_for_them() -> None:
    pod = MemoryPod()
    listener = mcpp.Participant("listener")
    async with (
        pod.connect("watcher") as watcher,
        pod.run(librarian()),
        pod.run(listener),
        pod.connect("anna") as anna,
    ):
        await card_of(anna, "listener")
        await card_of(anna, "librarian")
        await watcher.cards.announce({"tools": []})
        toolbox = Toolbox(anna)
        with anyio.fail_after(0.9):  # a participant that never answers would take a second
            tools = await toolbox.list_tools()
            await toolbox.list_tools()
        assert list(tools) == ["librarian__search"]
        asked: list[str] = []
        with anyio.move_on_after(0.2):
            async for message in watcher:
                if message.kind.startswith("mcp/request:tools/list"):
                    asked += message.to or ()
        assert asked == ["librarian"]


async def test_what_is_meant_for_a_participant(harness: AnyPod) -> None:
    async with harness.connect("anna") as anna, harness.connect("bob", own=True) as bob:
        for text, to in (
            ("hello", "bob"),
            ("hello", None),
            ("hi @bob!", None),
            ("hi @bobby", None),
            ("mail a@bob", None),
            ("@bob", "anna"),
        ):
            await anna.send("chat", text, to=to)
        await bob.send("chat", "@bob talks to himself", to="bob")
        found = []
        with anyio.fail_after(10):
            async for message in bob:
                if message.kind == "chat":
                    found.append(message.is_for_me)
                if message.sender == "bob":
                    break
        assert found == [True, False, True, False, False, True, False]


async def test_a_call_to_the_wrong_participant_names_those_who_offer_the_tool() -> None:
    pod = MemoryPod()
    async with pod.connect("anna") as anna, pod.run(librarian()):
        await card_of(anna, "librarian")
        with pytest.raises(mcpp.AbsentError, match="'search' is a tool of librarian") as caught:
            await anna.call("books", "search", word="x")
        assert caught.value.offering == ("librarian",)
