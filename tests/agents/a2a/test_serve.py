"""Participants served to A2A clients: with the SDK's own client, against a real gateway."""

from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest
from a2a.client import Client
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    SubscribeToTaskRequest,
    Task,
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskState,
    UnsupportedOperationError,
)

import mcpp
from mcpp.payloads import Preview
from mcpp_agents.a2a.joining.joined_agent import JoinedAgent
from mcpp_agents.a2a.joining.remote_agent import RemoteAgent
from mcpp_agents.a2a.parts import data_of
from tests.agents.a2a.servers import (
    VERSIONS,
    ScriptedExecutor,
    asking,
    client_of,
    events_of,
    parrot,
    remote_agent,
    served,
)
from tests.interaction.conftest import SocketPod

pytestmark = pytest.mark.anyio


async def final_task(client: Client, text: str, **ids: str) -> Task:
    """Send a text and return the task as it is when the answer ends."""
    events = await events_of(client, text, **ids)
    (id,) = {
        event.task.id or event.status_update.task_id or event.artifact_update.task_id
        for event in events
    }
    return await client.get_task(GetTaskRequest(id=id))


def waiting_agent() -> tuple[mcpp.Participant, anyio.Event, anyio.Event]:
    """Return a participant that never answers; the events: it was asked, and it was stopped."""
    agent = mcpp.Participant("sloth")
    asked, stopped = anyio.Event(), anyio.Event()

    @agent.on("chat", to_me=True)
    async def wait(message: mcpp.Message) -> None:
        asked.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            stopped.set()
            raise

    return agent, asked, stopped


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_card_tells_who_the_participant_is(sockets: SocketPod, version: str) -> None:
    async with sockets.run(parrot()), served(sockets, "parrot", "a2a") as url:
        async with client_of(f"{url}/parrot", version) as client:
            card = client._card  # type: ignore[attr-defined]
            assert (card.name, card.description) == ("parrot", "Repeats.")
            assert [skill.id for skill in card.skills] == ["chat", "fly"]
            assert card.supported_interfaces[0].url == f"{url}/parrot"
            assert not card.capabilities.push_notifications
        async with client_of(url, version) as first:
            assert first._card.name == "parrot"  # type: ignore[attr-defined]
        async with client_of(f"{url}/a2a", version) as other:
            assert other._card.name == "a2a"  # type: ignore[attr-defined]


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("version", VERSIONS)
async def test_a_message_is_a_task_that_ends_with_the_answer(
    sockets: SocketPod, version: str, streaming: bool
) -> None:
    async with (
        sockets.run(parrot()),
        sockets.connect("alice") as alice,
        served(sockets, "parrot") as url,
        client_of(url, version, streaming=streaming) as client,
    ):
        task = await final_task(client, "good morning")
        assert task.status.state == TaskState.TASK_STATE_COMPLETED
        assert [part.text for part in task.artifacts[0].parts] == ["You said: good morning"]
        assert [message.parts[0].text for message in task.history] == [
            "good morning",
            "You said: good morning",
        ]
        context = await alice.context_of(task.id)
        assert (context.type, context.title, context.state) == (
            "task",
            "good morning",
            "concluded",
        )


@pytest.mark.parametrize("version", VERSIONS)
async def test_an_answer_is_streamed_while_it_is_written(sockets: SocketPod, version: str) -> None:
    poet = mcpp.Participant("poet")
    go_on = anyio.Event()

    @poet.on("chat", to_me=True)
    async def recite(message: mcpp.Message) -> None:
        async with message.stream() as out:
            await out.write("Shall I ")
            await go_on.wait()
            await out.write("compare thee?")

    async with (
        sockets.run(poet),
        served(sockets, "poet") as url,
        client_of(url, version) as client,
    ):
        pieces: list[str] = []
        async for event in client.send_message(asking("a poem")):
            if event.HasField("artifact_update"):
                update = event.artifact_update
                pieces.append(update.artifact.parts[0].text)
                assert update.append == (len(pieces) > 1)
                go_on.set()  # the poet goes on only when the client has the beginning
        assert "".join(pieces) == "Shall I compare thee?"
        assert pieces[0] == "Shall I "
        assert event.status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_the_end_of_an_earlier_live_text_leaves_what_is_shown(sockets: SocketPod) -> None:
    coder = mcpp.Participant("coder")
    go_on = anyio.Event()

    @coder.on("chat", to_me=True)
    async def work(message: mcpp.Message) -> None:
        thought = message.stream()
        await thought.write("I begin. ")
        async with message.stream() as out:
            await out.write("It is ")
            await thought.end()
            await go_on.wait()
            await out.write("done.")

    async with (
        sockets.run(coder),
        served(sockets, "coder") as url,
        client_of(url, VERSIONS[0]) as client,
    ):
        updates = []
        async for event in client.send_message(asking("work")):
            if event.HasField("artifact_update"):
                update = event.artifact_update
                updates.append((update.artifact.parts[0].text, update.append))
                if updates[-1][0] == "It is ":
                    go_on.set()
    assert ("It is ", False) in updates
    assert updates[-1][1], "the answer is sent again from its start"


async def test_another_live_text_replaces_the_first_one(sockets: SocketPod) -> None:
    """As of a coding agent, which writes before it calls a tool, and then its answer."""
    coder = mcpp.Participant("coder")
    go_on = [anyio.Event(), anyio.Event()]

    @coder.on("chat", to_me=True)
    async def work(message: mcpp.Message) -> None:
        thought = message.stream()
        await thought.write("I begin. ")
        await go_on[0].wait()
        await thought.end()
        async with message.stream() as out:
            await out.write("It is ")
            await go_on[1].wait()
            await out.write("done.")

    async with (
        sockets.run(coder),
        served(sockets, "coder") as url,
        client_of(url, VERSIONS[0]) as client,
    ):
        shown: list[str] = []
        async for event in client.send_message(asking("work")):
            if event.HasField("artifact_update"):
                update = event.artifact_update
                text = update.artifact.parts[0].text
                shown.append(shown[-1] + text if update.append else text)
                go_on[min(len(shown), 2) - 1].set()  # it goes on when the client has this much
    assert shown[:2] == ["I begin. ", "It is "]
    assert shown[-1] == "It is done."


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_task_is_cancelled_and_so_is_the_work_on_it(
    sockets: SocketPod, version: str
) -> None:
    agent, asked, stopped = waiting_agent()
    async with (
        sockets.run(agent),
        served(sockets, "sloth") as url,
        client_of(url, version) as client,
    ):
        request = asking("sleep")
        request.configuration.return_immediately = True
        stream = client.send_message(request)
        task = (await anext(stream)).task
        await asked.wait()
        cancelled = await client.cancel_task(CancelTaskRequest(id=task.id))
        assert cancelled.status.state == TaskState.TASK_STATE_CANCELED
        events = [event async for event in stream]
        assert events[-1].status_update.status.state == TaskState.TASK_STATE_CANCELED
        with pytest.raises(TaskNotCancelableError):
            await client.cancel_task(CancelTaskRequest(id=task.id))
        await stopped.wait()


async def test_an_open_proposal_asks_the_client_who_approves_or_rejects(
    sockets: SocketPod,
) -> None:
    bank, clerk = mcpp.Participant("bank"), mcpp.Participant("clerk")

    @bank.tool
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @clerk.on("chat", to_me=True)
    async def work(message: mcpp.Message) -> None:
        async with message.child("reasoning") as thinking:
            proposal = await thinking.propose(
                "bank",
                "pay",
                amount=5,
                reason="as you asked",
                preview=Preview(before="20", after="15"),
            )
            try:
                result = await proposal.result(until_rejected=True)
            except mcpp.CallError as error:
                await message.reply(error.problem)
            else:
                await message.reply(result.text)

    async with (
        sockets.run(bank),
        sockets.run(clerk),
        served(sockets, "clerk") as url,
        client_of(url) as client,
    ):
        for answer, outcome in (("approve", "paid 5"), ("reject: too much", "too much")):
            events = await events_of(client, "pay it")
            status = events[-1].status_update.status
            assert status.state == TaskState.TASK_STATE_INPUT_REQUIRED
            text, data = status.message.parts
            assert "clerk proposes to call pay" in text.text
            assert "as you asked" in text.text
            assert "Before:\n20\nAfter:\n15\nAnswer" in text.text
            given = data_of(data)
            assert given["tool"] == "pay"
            assert given["preview"] == {"before": "20", "after": "15"}
            task_id = events[-1].status_update.task_id
            with pytest.raises(UnsupportedOperationError):
                await events_of(client, "perhaps", task_id=task_id)
            task = await final_task(client, answer, task_id=task_id)
            assert task.status.state == TaskState.TASK_STATE_COMPLETED
            assert outcome in task.artifacts[0].parts[0].text


async def test_a_proposal_that_the_pod_decides_lets_the_task_go_on(sockets: SocketPod) -> None:
    bank, clerk = mcpp.Participant("bank"), mcpp.Participant("clerk")

    @bank.tool
    async def pay(amount: int) -> str:
        return f"paid {amount}"

    @clerk.on("chat", to_me=True)
    async def work(message: mcpp.Message) -> None:
        async with message.child("reasoning") as thinking:
            proposal = await thinking.propose("bank", "pay", amount=5)
            await message.reply((await proposal.result()).text)

    async with (
        sockets.run(bank),
        sockets.run(clerk),
        sockets.connect("boss") as boss,
        served(sockets, "clerk") as url,
        client_of(url) as client,
    ):
        (*_, last) = await events_of(client, "pay it")
        id = last.status_update.task_id
        stream = client.subscribe(SubscribeToTaskRequest(id=id))
        shown = (await anext(stream)).task
        assert shown.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        (proposal,) = await boss.open_proposals()
        await boss.approve(proposal)
        states = [event.status_update.status.state async for event in stream]
        assert states[-1] == TaskState.TASK_STATE_COMPLETED
        with pytest.raises(UnsupportedOperationError, match="ended"):
            await events_of(client, "approve", task_id=id)


async def test_an_answer_counts_only_for_what_the_client_was_shown(sockets: SocketPod) -> None:
    bank, clerk = mcpp.Participant("bank"), mcpp.Participant("clerk")
    paid: list[int] = []

    @bank.tool
    async def pay(amount: int) -> None:
        paid.append(amount)

    @clerk.on("chat", to_me=True)
    async def work(message: mcpp.Message) -> None:
        async with message.child("reasoning") as thinking:
            for amount in (5, 5000):
                proposal = await thinking.propose("bank", "pay", amount=amount)
                await proposal.result()
        await message.reply("done")

    async with (
        sockets.run(bank),
        sockets.run(clerk),
        sockets.connect("boss") as boss,
        sockets.run(parrot()),
        served(sockets, "clerk", "parrot") as url,
        client_of(url) as client,
        client_of(f"{url}/parrot") as other,
    ):
        (*_, last) = await events_of(client, "pay it")
        id = last.status_update.task_id
        (small,) = await boss.open_proposals()
        await boss.approve(small)
        proposals = 0
        while proposals < 2:
            proposals += (await anext(boss)).kind.startswith("mcp/proposal")
        await final_task(other, "hello")  # now the server has seen both, too
        with pytest.raises(UnsupportedOperationError, match="settled"):
            await events_of(client, "approve", task_id=id)
        assert paid == [5]
        await client.get_task(GetTaskRequest(id=id))
        await final_task(client, "approve", task_id=id)
        assert paid == [5, 5000]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_question_of_the_participant_is_answered_by_the_client(
    sockets: SocketPod, version: str
) -> None:
    waiter = mcpp.Participant("waiter")

    @waiter.on("chat", to_me=True)
    async def serve(message: mcpp.Message) -> None:
        schema = {"type": "object", "properties": {"dish": {"type": "string"}}}
        params = {"message": "What will it be?", "requestedSchema": schema}
        context = None if message.context is None else message.context.id
        answer = await message.pod.request(
            message.sender, "elicitation/create", params, context=context
        )
        await message.reply(f"{answer['action']}: {answer.get('content')}")

    async with (
        sockets.run(waiter),
        served(sockets, "waiter") as url,
        client_of(url, version) as client,
    ):
        (*_, last) = await events_of(client, "I am hungry")
        status = last.status_update.status
        assert status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert status.message.parts[0].text == "What will it be?"
        task = await final_task(client, "soup", task_id=last.status_update.task_id)
        assert task.artifacts[0].parts[0].text == "accept: {'dish': 'soup'}"


async def test_a_restarted_server_still_knows_its_tasks(sockets: SocketPod) -> None:
    agent = mcpp.Participant("sloth")
    wake = anyio.Event()

    @agent.on("chat", to_me=True, concurrency=4, order="free")
    async def answer(message: mcpp.Message) -> None:
        if message.text != "at once":
            await wake.wait()
        await message.reply(f"Answer to {message.text}")

    async with sockets.run(agent):
        ids = []
        async with served(sockets, "sloth") as url, client_of(url) as client:
            done = await final_task(client, "at once")
            for text in ("first", "second"):
                request = asking(text, context_id="conversation")
                request.configuration.return_immediately = True
                ids.append((await anext(client.send_message(request))).task.id)
        async with sockets.connect("alice") as alice:
            wake.set()  # they are answered while no server runs
            answers = 0
            while answers < 2:
                message = await anext(alice)
                answers += (message.sender, message.kind) == ("sloth", "chat")
        async with served(sockets, "sloth") as url, client_of(url) as client:
            for id in ids:
                task = await client.get_task(GetTaskRequest(id=id))
                if task.status.state == TaskState.TASK_STATE_WORKING:  # being concluded
                    async for _ in client.subscribe(SubscribeToTaskRequest(id=id)):
                        pass
                    task = await client.get_task(GetTaskRequest(id=id))
                assert task.status.state == TaskState.TASK_STATE_COMPLETED
                assert task.context_id == "conversation"
                assert task.artifacts[0].parts[0].text.startswith("Answer to ")
            listed = await client.list_tasks(ListTasksRequest(include_artifacts=True))
            assert sorted(task.id for task in listed.tasks) == sorted([done.id, *ids])
            some = await client.list_tasks(ListTasksRequest(context_id="conversation", page_size=1))
            assert (len(some.tasks), some.total_size) == (1, 2)
            rest = await client.list_tasks(
                ListTasksRequest(
                    context_id="conversation", page_size=1, page_token=some.next_page_token
                )
            )
            assert {some.tasks[0].id, rest.tasks[0].id} == set(ids)
            assert not rest.next_page_token
            failed = TaskState.TASK_STATE_FAILED
            assert not (await client.list_tasks(ListTasksRequest(status=failed))).tasks


async def test_a_task_of_which_a_restarted_server_hears_the_answer_ends(
    sockets: SocketPod,
) -> None:
    agent = mcpp.Participant("sloth")
    wake = anyio.Event()

    @agent.on("chat", to_me=True)
    async def answer(message: mcpp.Message) -> None:
        await wake.wait()
        await message.reply("At last.")

    async with sockets.run(agent):
        async with served(sockets, "sloth") as url, client_of(url) as client:
            request = asking("take your time")
            request.configuration.return_immediately = True
            id = (await anext(client.send_message(request))).task.id
        async with served(sockets, "sloth") as url, client_of(url) as client:
            stream = client.subscribe(SubscribeToTaskRequest(id=id))
            assert (await anext(stream)).task.status.state == TaskState.TASK_STATE_WORKING
            wake.set()
            events = [event async for event in stream]
            assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_a_participant_that_leaves_fails_the_task(sockets: SocketPod) -> None:
    agent, asked, _ = waiting_agent()
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(served(sockets, "sloth"))
        client = await stack.enter_async_context(client_of(url))
        async with sockets.run(agent):
            request = asking("sleep")
            request.configuration.return_immediately = True
            stream = client.send_message(request)
            await anext(stream)
            await asked.wait()
        events = [event async for event in stream]
        status = events[-1].status_update.status
        assert status.state == TaskState.TASK_STATE_FAILED
        assert "sloth left the pod" in status.message.parts[0].text
        with pytest.raises(UnsupportedOperationError, match="not in the pod"):
            await events_of(client, "again")


async def test_only_tasks_of_this_participant_can_be_read(sockets: SocketPod) -> None:
    async with (
        sockets.run(parrot()),
        sockets.connect("alice") as alice,
        served(sockets, "parrot", "alice") as url,
        client_of(f"{url}/parrot") as parrots,
        client_of(f"{url}/alice") as hers,
    ):
        task = await final_task(parrots, "mine")
        async with alice.context("task", id="private") as private:
            await private.send("chat", "a secret")
        for client, id in (
            (hers, task.id),
            (parrots, "private"),
            (parrots, "no-such-task"),
            (parrots, "../../etc"),
            (parrots, "x" * 10_000),
        ):
            with pytest.raises(TaskNotFoundError):
                await client.get_task(GetTaskRequest(id=id))
            with pytest.raises(TaskNotFoundError):
                await client.cancel_task(CancelTaskRequest(id=id))


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_chain_of_client_pod_and_remote_agent(sockets: SocketPod, version: str) -> None:
    remote = ScriptedExecutor()
    remote.go_on.set()
    async with AsyncExitStack() as stack:
        enter: Any = stack.enter_async_context
        agent = await enter(RemoteAgent.open(await enter(remote_agent(remote, version))))
        await enter(sockets.run(JoinedAgent("painter", agent).participant))
        client = await enter(client_of(await enter(served(sockets, "painter")), version))
        counted = await final_task(client, "count")
        assert counted.artifacts[0].parts[0].text == "one, two\n\nAnd more."
        (*_, last) = await events_of(client, "ask")
        status = last.status_update.status
        assert status.state == TaskState.TASK_STATE_INPUT_REQUIRED
        assert status.message.parts[0].text == "Which colour?"
        answered = await final_task(client, "blue", task_id=last.status_update.task_id)
        assert answered.status.state == TaskState.TASK_STATE_COMPLETED
        assert answered.artifacts[0].parts[0].text == "You said blue."
