"""Remote A2A agents as participants: against servers made with the A2A SDK."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import mcpp
from mcpp.testing import MemoryPod
from mcpp_agents.a2a.joining.joined_agent import JoinedAgent, name_of
from mcpp_agents.a2a.joining.remote_agent import RemoteAgent
from tests.agents.a2a.servers import VERSIONS, ScriptedExecutor, remote_agent

pytestmark = pytest.mark.anyio


@pytest.fixture
def remote() -> ScriptedExecutor:
    return ScriptedExecutor()


@asynccontextmanager
async def joined(
    pod: MemoryPod, remote: ScriptedExecutor, version: str = "1.0", *, streaming: bool = True
) -> AsyncIterator[mcpp.Pod]:
    """Bring the remote agent into a pod as `painter`; yield alice's view."""
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(remote_agent(remote, version, streaming=streaming))
        agent = await stack.enter_async_context(RemoteAgent.open(url))
        await stack.enter_async_context(pod.run(JoinedAgent("painter", agent).participant))
        yield await stack.enter_async_context(pod.connect("alice"))


async def task_context(pod: mcpp.Pod) -> mcpp.ContextHistory:
    """Return the newest context of the painter."""
    own = mcpp.filters.sender("painter") & ~mcpp.filters.main_only
    newest = pod.history(own, order="newest", limit=1)
    (message,) = await newest.all()
    assert message.context is not None
    return await pod.context_of(message.context.id)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_chat_is_a_message_and_the_answer_a_reply(
    pod: MemoryPod, remote: ScriptedExecutor, version: str
) -> None:
    async with joined(pod, remote, version) as alice:
        reply = await alice.ask("painter", "hello there")
        assert reply.text == "Hello yourself."
        assert [message.parts[0].text for message in remote.messages] == ["hello there"]


@pytest.mark.parametrize("version", VERSIONS)
async def test_artifacts_are_heard_while_they_arrive_and_the_task_is_a_context(
    pod: MemoryPod, remote: ScriptedExecutor, version: str
) -> None:
    async with joined(pod, remote, version) as alice:

        async def on_text(piece: str) -> None:
            assert not remote.go_on.is_set() or heard
            heard.append(piece)
            remote.go_on.set()  # the agent has not finished before the first piece was heard

        heard: list[str] = []
        reply = await alice.ask("painter", "count for me", on_text=on_text)
        assert reply.text == "one, two\n\nAnd more."
        assert heard[0] == "one, "
        task = await task_context(alice)
        assert (task.state, task.type, task.title) == ("concluded", "task", "count for me")
        assert "I am on it." in [message.text for message in task.messages]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_question_is_a_chat_and_the_next_chat_its_answer(
    pod: MemoryPod, remote: ScriptedExecutor, version: str
) -> None:
    async with joined(pod, remote, version) as alice:
        question = await alice.ask("painter", "ask me")
        assert question.text == "Which colour?"
        assert (await task_context(alice)).state == "open"
        answer = await alice.ask("painter", "blue")
        assert answer.text == "You said blue."
        assert (await task_context(alice)).state == "concluded"
        first, second = remote.messages
        assert second.task_id == first.task_id != ""


async def test_an_asker_that_answers_questions_is_asked_in_the_pod(
    pod: MemoryPod, remote: ScriptedExecutor
) -> None:
    bob = mcpp.Participant("bob")
    asked: list[str] = []

    @bob.method("elicitation/create")
    async def elicit(params: dict[str, object], call: mcpp.ToolCall) -> dict[str, object]:
        asked.append(str(params["message"]))
        return {"action": "accept", "content": {"answer": "green"}}

    async with joined(pod, remote), pod.run(bob) as his:
        await his.cards.get("bob", wait_seconds=10)
        reply = await his.ask("painter", "ask me")
        assert (reply.text, asked) == ("You said green.", ["Which colour?"])


async def test_a_declined_question_cancels_the_task(
    pod: MemoryPod, remote: ScriptedExecutor
) -> None:
    bob = mcpp.Participant("bob")

    @bob.method("elicitation/create")
    async def elicit(params: dict[str, object], call: mcpp.ToolCall) -> dict[str, object]:
        return {"action": "decline"}

    async with joined(pod, remote) as alice, pod.run(bob) as his:
        await his.cards.get("bob", wait_seconds=10)
        reply = await his.ask("painter", "ask me")
        assert reply.text == "The task was cancelled: its question was declined."
        assert (await task_context(alice)).state == "cancelled"
        assert len(remote.cancelled) == 1


@pytest.mark.parametrize(
    ("text", "reply", "state"),
    [
        ("fail now", "The task failed: It broke.", "failed"),
        (
            "login please",
            "The agent needs an authorization before it goes on. Sign in at the door.",
            "open",
        ),
        ("say it", "You said say it.", "concluded"),
        ("data please", '{"sum":5,"of":[2,3]}', "concluded"),
    ],
)
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_state_of_a_task_is_told_and_is_the_outcome_of_its_context(
    pod: MemoryPod, remote: ScriptedExecutor, text: str, reply: str, state: str, streaming: bool
) -> None:
    async with joined(pod, remote, streaming=streaming) as alice:
        said = await alice.ask("painter", text)
        assert sorted(said.text) == sorted(reply)
        assert (await task_context(alice)).state == state


@pytest.mark.parametrize("version", VERSIONS)
async def test_giving_up_a_question_cancels_the_remote_task(
    pod: MemoryPod, remote: ScriptedExecutor, version: str
) -> None:
    async with joined(pod, remote, version) as alice:
        question = await alice.send("chat", "slow please", to="painter")
        await remote.working.wait()
        await alice.cancel(question)
        async for message in alice:
            if message.kind == "conclusion":
                break
        assert message.payload["outcome"] == "cancelled"
        assert len(remote.cancelled) == 1


async def test_skills_are_tools(pod: MemoryPod, remote: ScriptedExecutor) -> None:
    async with joined(pod, remote) as alice:
        card = await alice.cards.get("painter", wait_seconds=10)
        assert card is not None
        assert (card.description, list(card.tools)) == ("Paints on request.", ["paint", "mix"])
        painted = await alice.call("painter", "paint", message="a house")
        assert painted.text == "You said a house."
        assert dict(remote.messages[0].metadata) == {"skillId": "paint"}
        data = await alice.call("painter", "mix", message="data", data={"of": [2, 3]})
        assert data.structured == {"sum": 5, "of": [2, 3]}
        with pytest.raises(mcpp.ToolError, match="It broke"):
            await alice.call("painter", "paint", message="fail")


async def test_a_question_about_a_tool_call_goes_to_the_pod(
    pod: MemoryPod, remote: ScriptedExecutor
) -> None:
    person = mcpp.Participant("person")

    @person.method("elicitation/create")
    async def elicit(params: dict[str, object], call: mcpp.ToolCall) -> dict[str, object]:
        return {"action": "accept", "content": {"answer": "red"}}

    async with joined(pod, remote), pod.run(person), pod.run(mcpp.Participant("bob")) as bob:
        result = await bob.call("painter", "paint", message="ask me")
        assert result.text == "You said red."


async def test_a_reply_to_an_answer_is_not_a_question(
    pod: MemoryPod, remote: ScriptedExecutor
) -> None:
    async with joined(pod, remote) as alice:
        answer = await alice.ask("painter", "hello")
        await answer.reply("Thanks!")
        await alice.ask("painter", "hello again")
        texts = [message.parts[0].text for message in remote.messages]
        assert texts == ["hello", "hello again"]


async def test_an_agent_that_went_away_is_told(pod: MemoryPod, remote: ScriptedExecutor) -> None:
    async with remote_agent(remote, "1.0") as url:
        opened = RemoteAgent.open(url)
        agent = await opened.__aenter__()
    async with pod.run(JoinedAgent("painter", agent).participant), pod.connect("alice") as alice:
        reply = await alice.ask("painter", "hello")
        assert reply.text.startswith("I cannot answer this now: Network communication error")
    await opened.__aexit__(None, None, None)


def test_a_participant_is_named_after_its_card() -> None:
    assert name_of("Remote Painter (v2)") == "remote-painter-v2"
    assert name_of("日本") == "agent"
    assert len(name_of("x" * 200)) == 64
