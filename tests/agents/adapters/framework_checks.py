"""Agents of other frameworks in a pod. Runs where the frameworks are installed.

`test_frameworks.py` runs this file in an environment of its own (`make setup-frameworks`).
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from langchain_core.messages import AIMessage

import mcpp
from mcpp.testing import MemoryPod
from mcpp.transient import consumed, transient
from mcpp_agents.adapters import FrameworkAgent
from tests.agents.adapters import fake_langchain, fake_openai, fake_pydantic
from tests.agents.adapters.scripts import RECORDS, Framework, ModelScript, Step

pytestmark = pytest.mark.anyio

FRAMEWORKS = {
    "langgraph": fake_langchain.FRAMEWORK,
    "openai_agents": fake_openai.FRAMEWORK,
    "pydantic_ai": fake_pydantic.FRAMEWORK,
}
PLAIN = [{"kind": "chat"}, {"kind": "live/*"}, {"kind": "reflection"}, {"kind": "conclusion"}]


@pytest.fixture(params=FRAMEWORKS.values(), ids=list(FRAMEWORKS))
def framework(request: pytest.FixtureRequest) -> Framework:
    found: Framework = request.param
    return found


def weather() -> mcpp.Participant:
    agent = mcpp.Participant("weather")

    @agent.tool
    async def temperature(city: str) -> str:
        """Return the temperature of a city."""
        return f"5 degrees in {city}"

    return agent


def boss(decision: bool | str) -> mcpp.Participant:
    agent = mcpp.Participant("boss")

    @agent.policy
    async def decide(proposal: mcpp.Message) -> bool | str:
        return decision

    return agent


async def reasoning(pod: mcpp.Pod) -> mcpp.ContextHistory:
    """Return the newest context of the helper."""
    own = mcpp.filters.sender("helper") & ~mcpp.filters.main_only
    (newest,) = await pod.history(own, order="newest", limit=1).all()
    assert newest.context is not None
    return await pod.context_of(newest.context.id)


async def test_an_answer_is_heard_while_it_is_written_and_tools_of_the_pod_are_called(
    pod: MemoryPod, framework: Framework
) -> None:
    script = ModelScript(
        [
            Step("Let me see.", "weather__temperature", {"city": "Oslo"}),
            Step("It is 5 degrees."),
        ]
    )
    helper = framework.adapt(script, []).participant("helper")
    async with pod.run(weather()), pod.run(helper), pod.connect("alice") as alice:
        heard: list[str] = []
        reply = await alice.ask("helper", "How warm is it in Oslo?", on_text=heard.append)
        assert reply.text.strip() == "It is 5 degrees."
        assert heard[0].startswith("Let ")  # parts follow each other at intervals
        assert "weather__temperature" in script.offered[0]
        assert "5 degrees in Oslo" in script.shown[1]
        context = await reasoning(alice)
        assert (context.type, context.state) == ("reasoning", "concluded")
        thoughts = [each.text.strip() for each in context.messages if each.kind == "reflection"]
        assert thoughts == ["Let me see."]
        calls = [each.kind for each in context.messages if each.kind.startswith("mcp/")]
        assert calls[0] == "mcp/request:tools/call:temperature"


@pytest.mark.parametrize(
    ("decision", "shredded", "shown"),
    [(True, ["notes.txt"], "shredded notes.txt"), ("too precious", [], "too precious")],
    ids=["approved", "rejected"],
)
async def test_a_tool_that_needs_approval_is_proposed(
    pod: MemoryPod, framework: Framework, decision: bool | str, shredded: list[str], shown: str
) -> None:
    script = ModelScript([Step("", "shred", {"path": "notes.txt"}), Step("Done.")])
    done: list[str] = []
    helper = framework.adapt(script, done).participant("helper")
    async with pod.run(helper), pod.run(boss(decision)), pod.connect("alice") as alice:
        reply = await alice.ask("helper", "Shred my notes.")
        assert reply.text.strip() == "Done."
        assert done == shredded
        assert shown in script.shown[1]
        context = await reasoning(alice)
        (proposal,) = [each for each in context.messages if each.kind.startswith("mcp/proposal")]
        assert proposal.payload["params"]["arguments"] == {"path": "notes.txt"}
        if decision is True:
            answers = [each for each in context.messages if each.kind.startswith("mcp/response")]
            assert "shredded notes.txt" in str(answers[0].payload)


async def test_a_langchain_model_that_does_not_stream_is_heard_thinking_once(
    pod: MemoryPod,
) -> None:
    helper = fake_langchain.adapt_replies(
        AIMessage(
            [{"type": "reasoning", "reasoning": "Paper."}, {"type": "text", "text": "I shred it."}],
            tool_calls=[{"name": "shred", "args": {"path": "x"}, "id": "1"}],
        ),
        AIMessage("Done."),
    ).participant("helper")
    async with pod.run(helper), pod.run(boss(True)), pod.connect("alice") as alice:
        assert (await alice.ask("helper", "Shred my notes.")).text == "Done."
        context = await reasoning(alice)
    thoughts = [each.text for each in context.messages if each.kind == "reflection"]
    call = 'I call shred({"path":"x"}).'
    assert thoughts == ["Paper.", "I shred it.", call, "shred returned shredded x"]


async def test_a_call_that_the_agent_may_not_make_is_proposed(
    pod: MemoryPod, framework: Framework
) -> None:
    pod.add("helper", [*PLAIN, {"kind": "mcp/request:tools/list"}, {"kind": "mcp/proposal:*"}])
    script = ModelScript([Step("", "weather__temperature", {"city": "Oslo"}), Step("Cold.")])
    helper = framework.adapt(script, []).participant("helper")
    async with (
        pod.run(weather()),
        pod.run(boss(True)),
        pod.run(helper),
        pod.connect("alice") as alice,
    ):
        assert (await alice.ask("helper", "How warm?")).text.strip() == "Cold."
        assert "5 degrees in Oslo" in script.shown[1]


async def test_a_conversation_goes_on_and_others_do_not_see_it(
    pod: MemoryPod, framework: Framework
) -> None:
    script = ModelScript([Step("Hello Alice."), Step("You are Alice."), Step("I do not know you.")])
    helper = framework.adapt(script, []).participant("helper")
    async with pod.run(helper), pod.connect("alice") as alice, pod.connect("bob") as bob:
        await alice.ask("helper", "I am Alice-7.")
        await alice.ask("helper", "Who am I?")
        await bob.ask("helper", "Who am I?")
    assert "Alice-7" in script.shown[1]
    assert "Alice-7" not in script.shown[2]


async def test_a_model_that_fails_leaves_the_asker_with_a_reply(
    pod: MemoryPod, framework: Framework, caplog: pytest.LogCaptureFixture
) -> None:
    helper = framework.adapt(ModelScript([]), []).participant("helper")
    async with pod.run(helper), pod.connect("alice") as alice:
        reply = await alice.ask("helper", "Hello?")
        assert reply.text == "I cannot answer this now: IndexError"
        assert (await reasoning(alice)).state == "failed"


async def test_giving_up_a_question_cancels_the_work(pod: MemoryPod, framework: Framework) -> None:
    lazy = mcpp.Participant("lazy")
    called, stopped = anyio.Event(), anyio.Event()

    @lazy.tool
    async def wait() -> str:
        called.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return ""

    helper = framework.adapt(ModelScript([Step("", "lazy__wait")]), []).participant("helper")
    async with pod.run(lazy), pod.run(helper), pod.connect("alice") as alice:
        question = await alice.send("chat", "Wait for it.", to="helper")
        await called.wait()
        await alice.cancel(question)
        await stopped.wait()
        async for message in alice:
            if message.kind == "conclusion":
                break
        assert message.payload["outcome"] == "cancelled"


async def test_consumed_results_of_the_pod_collapse(pod: MemoryPod, framework: Framework) -> None:
    records = mcpp.Participant("records")

    @records.tool
    async def fetch() -> dict[str, Any]:
        return transient({"content": [{"type": "text", "text": RECORDS}]}, summary="2,000 records")

    @records.tool
    async def keep(text: str) -> dict[str, Any]:
        return consumed({"content": [{"type": "text", "text": "kept"}]})

    script = ModelScript(
        [
            Step("", "records__fetch"),
            Step("", "records__keep", {"text": "all are equal"}),
            Step("Done."),
        ]
    )
    helper = framework.adapt(script, []).participant("helper")
    async with pod.run(records), pod.run(helper), pod.connect("alice") as alice:
        assert (await alice.ask("helper", "Look at the records.")).text.strip() == "Done."
    assert RECORDS in script.shown[1]
    assert RECORDS not in script.shown[2]
    assert "2,000 records" in script.shown[2]


async def test_consumed_results_collapse_outside_of_pods(framework: Framework) -> None:
    script = ModelScript(
        [
            Step("", "search"),
            Step("", "store", {"text": "all are equal"}),
            Step("Done."),
        ]
    )
    assert (await framework.ask(script, "Look at the records.")).strip() == "Done."
    assert RECORDS in script.shown[1]
    assert RECORDS not in script.shown[2]
    assert "stored all are equal" in script.shown[2]


BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGE = Path(__file__).parents[3] / "docs" / "frameworks.md"
MODELS: dict[str, Callable[[], Any]] = {
    "from pydantic_ai": lambda: fake_pydantic.model(ModelScript([])),
    "from agents": lambda: fake_openai.ScriptedModel(ModelScript([])),
    "from langchain": lambda: fake_langchain.ScriptedChat(
        messages=iter(()), script=ModelScript([])
    ),
}


@pytest.mark.parametrize("block", BLOCK.findall(PAGE.read_text()))
async def test_the_blocks_of_the_page_run(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[str] = []

    async def join(self: FrameworkAgent, name: str) -> None:
        joined.append(self.participant(name).name)

    monkeypatch.setattr(FrameworkAgent, "join", join)
    (model,) = [make() for start, make in MODELS.items() if block.startswith(start)]
    names: dict[str, Any] = {"model": model}
    exec(compile(block, str(PAGE), "exec"), names)
    if "main" in names:
        await names["main"]()
        assert joined == ["helper"]
    else:
        assert "collapse" in names
