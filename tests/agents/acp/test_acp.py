"""A coding agent in a pod: prompts, updates, sessions, cancellation."""

import json
from datetime import timedelta

import anyio
import pytest

import mcpp
from mcpp import ContextTree
from mcpp.client.factory import now, timestamp
from mcpp.client.local_pod import Address
from mcpp.testing import MemoryPod
from mcpp_agents.acp.descriptions import ToolCallState
from mcpp_agents.acp.limits import AcpLimits
from mcpp_agents.acp.pod_tools import pod_server
from tests.agents.acp.bridges import Folders, coding_agent, said

pytestmark = pytest.mark.anyio


async def test_a_chat_wakes_the_agent_and_its_text_is_the_reply(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        heard: list[str] = []
        reply = await alice.ask("coder", "say Good \nsay morning", on_text=heard.append)
        assert reply.text == "Good morning"
        assert reply.text.startswith("".join(heard))
        await alice.send("chat", {"text": "not for anyone"})
        await alice.send("chat", {"text": "@coder\nsay by mention"})
        assert (await said(alice, "chat", "by mention")).text == "by mention"


async def test_its_work_is_a_reasoning_context_below_that_of_the_question(
    pod: MemoryPod, folders: Folders
) -> None:
    steps = "think Let me see.\nplan read, write\nsay I begin.\nrun ls\nsay \nsay Done."
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        async with alice.context("task", title="Work") as task:
            reply = await task.ask("coder", steps)
            assert reply.text.endswith("Done.")
        log = [message.envelope for message in await alice.history().all()]
    tree = ContextTree(log)
    (work,) = tree.roots
    (reasoning,) = work.children
    assert (reasoning.type, reasoning.state) == ("reasoning", "concluded")
    thoughts = [each.payload["thought"] for each in log if each.kind == "reflection"]
    assert thoughts[0] == "Let me see."
    assert thoughts[1] == "Plan:\n- [ ] read\n- [ ] write"
    assert thoughts[2] == "I begin."  # said before it went on, so not the reply
    assert thoughts[3].startswith("Done: execute ls\nrefused: this client offers no terminals")
    (conclusion,) = [each.payload for each in log if each.kind == "conclusion"]
    assert conclusion["usage"] == {"input_tokens": 7, "output_tokens": 3, "cached_tokens": 0}


async def test_each_context_has_a_session_and_the_main_stream_one_more(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        await alice.ask("coder", "say main")
        async with alice.context("task") as one, alice.context("task") as two:
            await one.ask("coder", "say in one")
            assert (await two.ask("coder", "remember")).text == "nothing"
            assert (await one.ask("coder", "remember")).text == "say in one"
        assert (await alice.ask("coder", "remember")).text == "say main"


async def test_what_was_asked_while_no_bridge_ran_is_answered_in_its_turn(
    pod: MemoryPod, folders: Folders
) -> None:
    async with pod.connect("alice") as alice:
        asked = await alice.send("chat", "say one", to="coder")
        for ts in (timestamp(now() - timedelta(hours=2)), "0000-01-01T00:00:00Z"):
            old = mcpp.new_envelope(
                "chat", {"text": "say old"}, sender="alice", to=["coder"], ts=ts
            )
            await alice.send_envelope(old)
        await alice.cancel(await alice.send("chat", "say given up", to="coder"))
        async with alice.context("task") as ended:
            await ended.send("chat", "say ended", to="coder")
            await ended.conclude("ended")
        async with alice.context("task") as task:
            elsewhere = await task.send("chat", "say two", to="coder")
            async with coding_agent(pod, folders):
                replies = [await said(alice, "chat") for _ in range(2)]
                assert {each.correlation_id: each.text for each in replies} == {
                    asked.id: "one",
                    elsewhere.id: "two",
                }
                assert (await alice.ask("coder", "remember")).text == "say one"
        async with coding_agent(pod, folders):
            assert (await alice.ask("coder", "remember")).text == "say one | remember"


async def test_what_a_killed_bridge_had_begun_is_not_done_again(
    pod: MemoryPod, folders: Folders
) -> None:
    async with pod.connect("alice") as alice:
        asked = await alice.send("chat", "write /x: text", to="coder")
        async with pod.connect("coder") as before:  # as a bridge that ends without any cleaning up
            progress = {"progressToken": asked.id, "progress": 0}
            await before.notify("notifications/progress", progress, correlation_id=asked.id)
        async with coding_agent(pod, folders):
            told = await said(alice, "chat")
    assert told.correlation_id == asked.id
    assert told.text == "I was stopped before I had an answer."


async def test_a_missed_chat_can_be_cancelled_while_it_is_answered(
    pod: MemoryPod, folders: Folders
) -> None:
    async with pod.connect("alice") as alice:
        asked = await alice.send("chat", "think Hm.\nplan wait\nwait", to="coder")
        async with coding_agent(pod, folders):
            await said(alice, "reflection", "Plan")
            await alice.cancel(asked)
            ended = await said(alice, "conclusion")
            assert ended.payload["outcome"] == "cancelled"
            assert "wait" in (await alice.ask("coder", "remember")).text


async def test_a_missed_chat_can_be_given_up_while_it_waits_for_another(
    pod: MemoryPod, folders: Folders
) -> None:
    async with pod.connect("alice") as alice, alice.context("task") as task:
        first = await alice.send("chat", "plan wait\nwait", to="coder")
        given_up = await alice.send("chat", "say given up", to="coder")
        last = await alice.send("chat", "remember", to="coder")
        await task.send("chat", "say ended", to="coder")
        async with coding_agent(pod, folders, limits=AcpLimits(questions=1)):
            await said(alice, "reflection", "Plan")
            await task.conclude("ended")
            await alice.cancel(given_up)
            await alice.cancel(first)
            answer = await said(alice, "chat")
            assert (answer.correlation_id, answer.text) == (last.id, "plan wait\nwait")
            assert (await task.ask("coder", "remember")).text == "nothing"


async def test_a_missed_chat_that_cannot_be_answered_keeps_no_other_back(folders: Folders) -> None:
    pod = MemoryPod(limits={"max_hops": 2}, people=["alice"])
    async with pod.connect("alice") as alice, pod.connect("bot") as bot:
        first = await bot.send("chat", "one")
        second = await bot.send("chat", "say two", to="coder", correlation_id=first.id)
        asked = await alice.send("chat", "say three", to="coder")
        async with coding_agent(pod, folders):
            answer = await said(alice, "chat", "three")
        assert (answer.sender, answer.correlation_id) == ("coder", asked.id)
        log = await alice.history().all()
        assert second.id not in [each.correlation_id for each in log if each.kind == "chat"]


async def test_missed_and_new_questions_share_the_limit_of_those_answered_at_once(
    pod: MemoryPod, folders: Folders
) -> None:
    async with pod.connect("alice") as alice, alice.context("task") as task:
        missed = await alice.send("chat", "plan wait\nwait", to="coder")
        async with coding_agent(pod, folders, limits=AcpLimits(questions=1)):
            await said(alice, "reflection", "Plan")
            asked = await task.send("chat", "say new", to="coder")
            # The agent has seen the chat when it answers what was sent after it.
            await alice.request("coder", "ping")
            await alice.cancel(missed)
            answer = await said(alice, "chat")
            assert answer.correlation_id == asked.id
        log = await alice.history().all()
    ended = next(each.position for each in log if each.kind == "conclusion")
    begun = next(
        each.position
        for each in log
        if each.correlation_id == asked.id and each.kind.startswith("mcp/notification")
    )
    assert ended < begun


async def test_a_restarted_bridge_goes_on_with_its_sessions(
    pod: MemoryPod, folders: Folders
) -> None:
    async with pod.connect("alice") as alice:
        async with coding_agent(pod, folders):
            await alice.ask("coder", "say the word is swordfish")
        async with coding_agent(pod, folders):
            # The past that the agent repeats when it loads a session is not said again.
            assert (await alice.ask("coder", "remember")).text == "say the word is swordfish"
            thoughts = await alice.history(mcpp.filters.kind("reflection")).all()
            assert thoughts == []
        (folders.state / "coder-kept.json").unlink()
        async with coding_agent(pod, folders):
            assert (await alice.ask("coder", "remember")).text == "nothing"
    assert (folders.state / "coder-sessions.json").stat().st_mode & 0o777 == 0o600


async def test_a_requester_that_gives_up_cancels_the_session(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        question = await alice.send("chat", "plan work\nwait", to="coder")
        await said(alice, "reflection")
        await alice.cancel(question)
        ended = await said(alice, "conclusion")
        assert ended.payload["outcome"] == "cancelled"
        # The same session goes on.
        assert "plan work" in (await alice.ask("coder", "remember")).text


async def test_a_context_that_ends_cancels_the_work_below_it(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        async with alice.context("workflow") as flow, flow.child("task") as task:
            await task.send("chat", "plan work\nwait", to="coder")
            await said(alice, "reflection")
            await flow.send("conclusion", {"outcome": "cancelled"})
            ended = await said(alice, "conclusion")
        assert (ended.sender, ended.payload["outcome"]) == ("coder", "cancelled")


async def test_another_participant_cannot_end_a_context_for_the_agent(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice, pod.connect("eve") as eve:
        async with alice.context("task") as task:
            await task.send("chat", "plan work\nwait", to="coder")
            await said(eve, "reflection")
            await eve.send("conclusion", {"outcome": "cancelled"}, context=task.id)
            assert (await alice.ask("coder", "say still here")).text == "still here"
            log = await alice.history().all()
        assert [m.sender for m in log if m.kind == "conclusion"] == ["eve", "coder"]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ("stop refusal", "I have no answer to this. (the agent refuses to go on)"),
        ("say A\nstop max_tokens", "A (stopped: the model's limit of tokens)"),
        ("think Only a thought.", "I have no answer to this."),
    ],
)
async def test_an_incomplete_answer_says_so(
    pod: MemoryPod, folders: Folders, steps: str, expected: str
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        assert (await alice.ask("coder", steps)).text == expected


async def test_an_agent_that_ends_is_started_again_and_keeps_its_sessions(
    pod: MemoryPod, folders: Folders
) -> None:
    async with coding_agent(pod, folders), pod.connect("alice") as alice:
        failed = await alice.ask("coder", "die")
        assert failed.text.startswith("I cannot answer this now: the coding agent failed")
        assert (await alice.ask("coder", "remember")).text == "die"


async def test_two_agents_do_not_thank_each_other_endlessly(
    pod: MemoryPod, folders: Folders
) -> None:
    async with (
        coding_agent(pod, folders, "one"),
        coding_agent(pod, folders, "two"),
        pod.connect("alice") as alice,
    ):
        # A reply that mentions another agent wakes it; its reply is the end of it.
        await alice.send("chat", "call two: say @one thanks", to="one")
        chats = [await said(alice, "chat") for _ in range(2)]
        assert [chat.sender for chat in chats] == ["one", "two"]
        assert chats[1].text == "@one thanks"
        assert (await alice.ask("one", "say quiet")).text == "quiet"


async def test_the_pod_s_tools_are_handed_over_and_secrets_are_not(
    pod: MemoryPod, folders: Folders
) -> None:
    address = Address("wss://127.0.0.1:1/ws?pod=x", "secret", "authority.pem")
    servers = [pod_server("coder", address, "token")]
    async with coding_agent(pod, folders, servers=servers), pod.connect("alice") as alice:
        given = json.loads((await alice.ask("coder", "servers")).text)
        assert [(each["name"], [v["name"] for v in each["env"]]) for each in given] == [
            ("pod", ["MCPP_URL", "MCPP_TOKEN", "MCPP_CA"])
        ]
        assert (await alice.ask("coder", "env SECRET")).text == "not set"


async def test_a_program_that_cannot_be_run_is_reported(pod: MemoryPod, folders: Folders) -> None:
    with pytest.raises(mcpp.McppError, match="cannot be run"):
        async with coding_agent(pod, folders, command=["/nonexistent/agent"]):
            await anyio.sleep_forever()


async def test_a_mode_is_set_for_new_and_loaded_sessions(pod: MemoryPod, folders: Folders) -> None:
    async with pod.connect("alice") as alice:
        async with coding_agent(pod, folders, mode="plan"):
            assert (await alice.ask("coder", "mode")).text == "plan"
        async with coding_agent(pod, folders, mode="plan"):
            assert (await alice.ask("coder", "mode")).text == "plan"
        async with coding_agent(pod, folders, mode="ask"):
            # It does nothing rather than work in a mode that asks for less.
            failed = await alice.ask("coder", "say done")
    assert failed.text.endswith("the coding agent has no mode 'ask', but: code, plan")


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("greet.py", "edit greet.py"),
        ("edit greet.py", "edit greet.py"),
        ("Write greet.py", "Write greet.py"),
    ],
)
def test_a_call_is_named_by_its_kind_unless_its_title_is_a_sentence(title: str, name: str) -> None:
    assert ToolCallState("1", title=title, kind="edit").name == name
