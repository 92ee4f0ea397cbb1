"""Questions of MCP servers, answered by the caller, by others in the pod, or declined."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp import Client

import mcpp
from mcpp import CallError, Participant, ToolError
from mcpp.agent.tools import ToolCall
from mcpp.client.tasks import background
from mcpp.protocol import rpc
from mcpp.testing import MemoryPod
from mcpp_agents.bridge.agent import bridge
from mcpp_agents.bridge.openers import over_stdio
from mcpp_agents.bridge.questions import Questions
from mcpp_agents.bridge.server_questions import ServerQuestions
from mcpp_agents.bridge.upstream import Upstream
from mcpp_agents.mcp_server.server import PodServer
from mcpp_agents.mcp_server.shared_pod import SharedPod
from tests.agents import conformance
from tests.agents.processes import BOUND

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
FIXTURE = [sys.executable, str(Path(conformance.__file__).with_name("fixture_server.py"))]
# In the older revisions a server asks while it works, in the newer ones it answers with questions.
ERAS = pytest.mark.parametrize("era", ["older", "newer"])


@asynccontextmanager
async def bridged(
    pod: MemoryPod, era: str, questions: Questions | None = None
) -> AsyncIterator[None]:
    """Bridge the fixture as `server`, in one of the eras."""
    asking = questions or Questions()
    command = [*FIXTURE, "--legacy"] if era == "older" else FIXTURE
    upstream = Upstream(over_stdio(command), name="server", questions=ServerQuestions(asking))
    async with background() as tasks:
        with anyio.fail_after(3 * BOUND):  # it imports the SDK
            await tasks.start(upstream.keep_running)
        async with pod.run(bridge("server", upstream, asking)):
            with anyio.fail_after(BOUND):
                yield


def person(name: str, answer: dict[str, Any], asked: list[dict[str, Any]]) -> Participant:
    agent = Participant(name)

    @agent.method("elicitation/create")
    async def elicit(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        asked.append(params | {"sender": call.sender, "context": call.envelope.context})
        return answer

    return agent


def elicitation(era: str) -> tuple[str, dict[str, Any]]:
    if era == "older":
        return "test_elicitation", {"message": "What is your name?"}
    return "test_input_required_result_elicitation", {}


CONTENT = {"name": "Ada", "username": "Ada", "email": "a@b"}
ACCEPTED: dict[str, Any] = {"action": "accept", "content": CONTENT}


@ERAS
@pytest.mark.rule("P-61")
async def test_a_question_is_put_to_the_caller_in_the_call_s_context(
    pod: MemoryPod, era: str
) -> None:
    asked: list[dict[str, Any]] = []
    tool, arguments = elicitation(era)
    async with bridged(pod, era), pod.run(person("ada", ACCEPTED, asked)) as ada:
        async with ada.context("task", id="t1") as task:
            result = await task.call("server", tool, arguments)
        assert "Ada" in result.text
    [question] = asked
    assert question["message"] == "What is your name?"
    assert question["sender"] == "server"
    assert question["context"].id == "t1"
    assert question["_meta"][rpc.CALL]


@ERAS
@pytest.mark.rule("P-61")
async def test_a_question_that_the_caller_cannot_answer_is_put_to_others(
    pod: MemoryPod, era: str
) -> None:
    asked: list[dict[str, Any]] = []
    tool, arguments = elicitation(era)
    async with (
        bridged(pod, era),
        pod.run(person("ada", ACCEPTED, asked)),
        pod.run(Participant("caller")) as caller,
    ):
        assert "Ada" in (await caller.call("server", tool, arguments)).text
    assert len(asked) == 1


@pytest.mark.rule("P-61", "P-72")
async def test_a_question_finds_a_person_among_many_when_the_caller_only_calls(
    pod: MemoryPod,
) -> None:
    asked: list[dict[str, Any]] = []
    tool, arguments = elicitation("newer")
    async with AsyncExitStack() as stack:
        caller = await stack.enter_async_context(pod.connect("caller"))  # never answers
        for number in range(20):
            await stack.enter_async_context(pod.connect(f"silent{number}"))
        await stack.enter_async_context(bridged(pod, "newer"))
        await stack.enter_async_context(pod.run(person("ada", ACCEPTED, asked)))
        assert await caller.cards.get("ada", wait_seconds=BOUND)
        assert "Ada" in (await caller.call("server", tool, arguments)).text
    assert len(asked) == 1


@ERAS
@pytest.mark.rule("P-61")
async def test_only_participants_that_the_operator_names_are_asked_besides_the_caller(
    pod: MemoryPod, era: str
) -> None:
    asked: list[dict[str, Any]] = []
    tool, arguments = elicitation(era)
    async with (
        bridged(pod, era, Questions(["boss"])),
        pod.run(person("ada", {"action": "decline"}, asked)),
        pod.run(person("boss", ACCEPTED, [])),
        pod.run(Participant("caller")) as caller,
    ):
        assert "Ada" in (await caller.call("server", tool, arguments)).text
    assert asked == []


@pytest.mark.rule("P-61")
async def test_a_caller_does_not_answer_for_another_one_where_the_operator_names_who_answers(
    pod: MemoryPod,
) -> None:
    asked: list[dict[str, Any]] = []
    intruder = Participant("intruder")
    holds = anyio.Event()

    @intruder.method("elicitation/create")
    async def elicit(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        asked.append(params)
        holds.set()
        if len(asked) == 1:  # its own question: its call stays open
            await anyio.sleep_forever()
        return {"action": "accept", "content": {"username": "Eve", "email": "e@b"}}

    async with (
        bridged(pod, "older", Questions(["boss"])),
        pod.run(person("boss", ACCEPTED, [])),
        pod.run(Participant("caller")) as caller,
        pod.run(intruder) as holding,
        background() as tasks,
    ):
        tasks.start_soon(holding.call, "server", *elicitation("older"))
        await holds.wait()
        assert "Ada" in (await caller.call("server", *elicitation("older"))).text
    assert len(asked) == 1


@pytest.mark.rule("P-62")
async def test_a_question_without_an_answer_is_declined_with_a_reason(
    pod: MemoryPod, caplog: pytest.LogCaptureFixture
) -> None:
    async with bridged(pod, "older", Questions(seconds=0.2)), pod.connect("silent") as silent:
        result = await silent.call("server", "test_elicitation", message="Anybody there?")
        assert "action=decline" in result.text
        assert "elicitation/create was declined: no participant answered" in caplog.text
        with pytest.raises(CallError, match=r"declined: no participant answered within 0\.2 s"):
            await silent.call("server", "test_sampling", prompt="Paris?")


@ERAS
@pytest.mark.rule("P-62")
async def test_a_caller_without_a_card_learns_in_time_that_no_participant_answers(
    pod: MemoryPod, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    tool, arguments = elicitation(era)
    questions = Questions(unknown_seconds=0.1)
    async with bridged(pod, era, questions), pod.connect("caller") as caller:
        if era == "older":
            result = await caller.call("server", tool, arguments, timeout=BOUND)
            assert "action=decline" in result.text
        else:  # this one asks again
            with pytest.raises(CallError, match=r"What is your name\? \(no participant can"):
                await caller.call("server", tool, arguments, timeout=BOUND)
    assert "elicitation/create was declined: no participant can answer it" in caplog.text


@ERAS
@pytest.mark.rule("P-61")
async def test_a_participant_that_samples_answers_a_server(pod: MemoryPod, era: str) -> None:
    model = Participant("model")

    @model.method("sampling/createMessage")
    async def sample(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": {"type": "text", "text": "It is Paris."},
            "model": "m",
        }

    names = {"older": "test_sampling", "newer": "test_input_required_result_sampling"}
    arguments = {"prompt": "?"} if era == "older" else {}
    async with bridged(pod, era), pod.run(model), pod.run(Participant("caller")) as caller:
        assert "It is Paris." in (await caller.call("server", names[era], arguments)).text


async def test_several_rounds_of_questions_are_answered(pod: MemoryPod) -> None:
    asked: list[dict[str, Any]] = []
    async with bridged(pod, "newer"), pod.run(person("ada", ACCEPTED, asked)) as ada:
        result = await ada.call("server", "test_input_required_result_multi_round")
        assert result.text == "both rounds"
    assert len(asked) == 2


@pytest.mark.rule("P-60")
async def test_a_result_that_asks_for_input_is_an_error_for_a_caller(pod: MemoryPod) -> None:
    asking = Participant("asking")

    @asking.method("tools/call")
    async def ask(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        question = {"method": "elicitation/create", "params": {"message": "How many?"}}
        return {"resultType": "input_required", "inputRequests": {"a": question}}

    async with pod.run(asking), pod.connect("alice") as alice:
        with pytest.raises(ToolError, match=r"asks for input.*: How many\?"):
            await alice.call("asking", "count")


@ERAS
@pytest.mark.parametrize("client_era", ["legacy", "auto"])
async def test_the_client_behind_mcpp_mcp_answers_for_its_own_calls(
    pod: MemoryPod, era: str, client_era: Any
) -> None:
    asked: list[str] = []

    async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
        asked.append(params.message)
        return types.ElicitResult(action="accept", content={**CONTENT})

    tool, arguments = elicitation(era)
    async with (
        bridged(pod, era),
        pod.run(person("ada", {"action": "decline"}, [])),
        pod.connect("ide", own=True) as ide,
        background() as tasks,
    ):
        shared = SharedPod(ide)
        server = PodServer(shared)
        tasks.start_soon(shared.listen)
        async with Client(
            server.server, mode=client_era, elicitation_callback=elicit, cache=None
        ) as client:
            result = await client.call_tool(f"server__{tool}", arguments)
            assert "Ada" in json.dumps(result.model_dump(mode="json"))
    assert asked == ["What is your name?"]


@pytest.mark.rule("P-61")
async def test_a_question_of_another_participant_than_the_called_one_is_not_passed_on(
    pod: MemoryPod,
) -> None:
    async with pod.connect("ide", own=True) as ide, background() as tasks:
        shared = SharedPod(ide)
        tasks.start_soon(shared.listen)
        async with pod.connect("mallory") as mallory:
            question = {"message": "Your password?", "_meta": {rpc.CALL: "x"}}
            with pytest.raises(mcpp.RemoteError, match="no client's request"):
                await mallory.request("ide", "elicitation/create", question)


@ERAS
async def test_participants_subscribe_to_a_resource_in_both_eras(pod: MemoryPod, era: str) -> None:
    uri = {"uri": "test://watched-resource"}
    async with (
        bridged(pod, era),
        pod.connect("ada") as ada,
        pod.connect("bob") as bob,
    ):
        for participant in (ada, bob):
            await participant.request("server", "resources/subscribe", uri)
        await bob.request("server", "resources/unsubscribe", uri)  # ada is still subscribed
        updated = "mcp/notification:notifications/resources/updated"
        seen = None
        while seen is None:
            await ada.call("server", "touch_resource")
            with anyio.move_on_after(1):
                seen = await anext(one async for one in bob if one.kind == updated)
        assert seen.payload["params"] == uri
