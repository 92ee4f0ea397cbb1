"""The chat: transcript, commands and keys, decisions on proposals; once in a real terminal."""

import json
import re
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.document import Document
from prompt_toolkit.input import DummyInput, PipeInput, create_pipe_input
from prompt_toolkit.output import DummyOutput
from prompt_toolkit.utils import get_cwidth

import mcpp
from mcpp import Gap, Participant
from mcpp.cli.shorthand import read_filter
from mcpp.client.tasks import background
from mcpp.testing import MemoryPod
from mcpp.testing.strategies import envelopes
from mcpp_agents.chat.actions import Actions
from mcpp_agents.chat.screen import Screen, truncate
from mcpp_agents.chat.session import run_chat
from mcpp_agents.chat.transcript import Transcript
from mcpp_agents.cli.display import clean, describe
from tests.agents.processes import BOUND, MCPP, Commands
from tests.interaction.agents import waiting
from tests.interaction.conftest import SocketPod

KINDS = [
    "chat",
    "reflection",
    "conclusion",
    "mcp/reject",
    "mcp/withdraw",
    *(f"mcp/{family}:tools/call:x" for family in ("request", "response", "proposal")),
    "mcp/proposal:resources/read",
    "mcp/notification:notifications/progress",
]


def said(kind: str, payload: Any, sender: str = "a", **members: Any) -> mcpp.Envelope:
    return mcpp.new_envelope(kind, payload, sender=sender, **members)


def shown(transcript: Transcript) -> list[str]:
    return [f"{'  ' * row.depth}{row.sender}|{row.text}" for row in transcript.rows()]


@pytest.fixture
def transcript() -> Transcript:
    outer = mcpp.new_context("reasoning", id="outer")
    inner = mcpp.new_context("check", id="inner", parent="outer")
    transcript = Transcript()
    for envelope in (
        said("chat", {"text": "hello"}),
        said("reflection", {"thought": "hm"}, context=outer),
        said("reflection", {"thought": "deep"}, "b", context=inner),
        said("conclusion", {"text": "deep enough"}, "b", context=inner),
        said("reflection", {"thought": "so"}, context=outer),
        said("conclusion", {"decision": "done"}, context=outer),
        said("mcp/notification:notifications/progress", {"params": {"progress": 1}}),
        said("chat", {"text": "bye"}, "b"),
    ):
        transcript.add(envelope)
    return transcript


def test_a_context_is_one_row_until_it_is_opened(transcript: Transcript) -> None:
    folded = "|▸ [1] reasoning by a · ∎ done · 5 messages with b"
    assert shown(transcript) == ["a|hello", folded, "b|bye"]
    transcript.toggle("outer")
    assert shown(transcript) == [
        "a|hello",
        "|▾ [1] reasoning by a · ∎ done · 5 messages with b",
        "  a|hm",
        "  |▸ [2] check by b · ∎ deep enough · 2 messages",
        "  a|so",
        "  a|∎ done",
        "b|bye",
    ]
    transcript.toggle("outer")
    assert shown(transcript) == ["a|hello", folded, "b|bye"]


def test_an_answer_to_a_context_names_its_number(transcript: Transcript) -> None:
    transcript.add(said("chat", {"text": "so no"}, correlation_id="outer", to=["b"]))
    assert shown(transcript)[-1] == "a|→ b: on [1] reasoning: so no"


@given(st.text(), st.integers(1, 100))
def test_a_heading_takes_one_line(text: str, columns: int) -> None:
    cut = truncate(clean(text), columns)
    assert get_cwidth(cut) <= columns
    assert cut in (clean(text), clean(text)[: len(cut) - 1] + "…")


def test_a_filter_hides_and_shows_again(transcript: Transcript) -> None:
    transcript.filter = read_filter("main from:b")
    assert shown(transcript) == ["b|bye"]
    transcript.filter = None
    assert len(shown(transcript)) == 3


def test_a_proposal_shows_its_state() -> None:
    transcript = Transcript()
    proposal = said(
        "mcp/proposal:tools/call:x",
        {"method": "tools/call", "params": {"name": "x", "arguments": {}}},
        to=["files"],
    )
    transcript.add(proposal)
    assert shown(transcript) == ["a|→ files: ◆ [1] open — proposes x()"]
    transcript.add(said("mcp/reject", {"reason": "no"}, "b", correlation_id=proposal.id))
    assert "◆ [1] open, rejected by b" in shown(transcript)[0]
    assert shown(transcript)[1] == "b|on [1]: rejects the proposal: no"
    # P-20: only a request with the same parameters fulfils it, whatever its correlation id.
    other = {"name": "x", "arguments": {"all": True}}
    for params in (other, proposal.payload["params"]):
        assert "approved" not in shown(transcript)[0]
        request = {"jsonrpc": "2.0", "id": "r", "method": "tools/call", "params": params}
        asked = {"to": ["files"], "correlation_id": proposal.id, "id": "r"}
        transcript.add(said("mcp/request:tools/call:x", request, "c", **asked))
    assert "◆ [1] approved by c" in shown(transcript)[0]
    transcript.add(said("mcp/withdraw", {}, correlation_id=proposal.id))
    assert "◆ [1] approved by c" in shown(transcript)[0]


def test_a_lost_log_leaves_nothing_to_decide() -> None:
    transcript = Transcript()
    payload = {"method": "tools/call", "params": {"name": "x", "arguments": {}}}
    think = mcpp.new_context("reasoning", id="think")
    transcript.add(said("reflection", {"thought": "hm"}, context=think))
    transcript.add(said("mcp/proposal:tools/call:x", payload, to=["files"], context=think))
    transcript.add_gap(Gap(lost_log=False))
    [proposal] = transcript.proposals.values()
    assert proposal.waits_for("me")
    transcript.add_gap(Gap(lost_log=True))
    assert not proposal.waits_for("me")
    transcript.add(said("reflection", {"thought": "anew"}, "b", context=think))
    assert shown(transcript) == [
        "|▸ [2] reasoning by a · expired · 2 messages",
        "|Some messages were missed here.",
        "|The gateway has lost its log.",
        "|▸ [2] reasoning by b · open · 1 message",
    ]


def test_a_lost_log_leaves_its_context_ids_to_others() -> None:
    transcript = Transcript()
    for type in ("reasoning", "plan"):
        context = mcpp.new_context(type, id="c")
        transcript.add(said("reflection", {"thought": "hm"}, context=context))
        transcript.add_gap(Gap(lost_log=True))
    transcript.add(said("chat", {"text": "why?"}, correlation_id="c"))
    assert [text for text in shown(transcript) if "lost" not in text] == [
        "|▸ [1] reasoning by a · expired · 1 message",
        "|▸ [1] plan by a · expired · 1 message",
        "a|on [1] plan: why?",
    ]


def test_a_proposal_to_decide_is_shown_below_its_folded_context() -> None:
    transcript = Transcript("me")
    outer = mcpp.new_context("reasoning", id="outer")
    inner = mcpp.new_context("check", id="inner", parent="outer")
    payload = {"method": "tools/call", "params": {"name": "x", "arguments": {}}}
    proposal = said("mcp/proposal:tools/call:x", payload, to=["files"], context=inner)
    for envelope in (said("reflection", {"thought": "hm"}, context=outer), proposal):
        transcript.add(envelope)
    assert shown(transcript)[1:] == ["  a|→ files: ◆ [1] open — proposes x()"]
    transcript.toggle("outer")
    transcript.toggle("inner")
    assert len([row for row in transcript.rows() if row.proposal]) == 1
    transcript.toggle("outer")
    # Another participant's rejection leaves the decision to me; my own is the decision.
    for who, waits in (("b", True), ("me", False)):
        no = {"reason": "no"}
        transcript.add(said("mcp/reject", no, who, correlation_id=proposal.id, context=inner))
        assert transcript.proposals[proposal.id].waits_for("me") == waits
        assert len(shown(transcript)[1:]) == waits
    transcript.add(said("mcp/withdraw", {}, correlation_id=proposal.id, context=inner))
    assert shown(transcript)[1:] == []


def test_a_long_message_is_truncated_until_it_is_opened() -> None:
    transcript = Transcript()
    long = said("chat", {"text": "\n".join(["x" * 700] * 30)})
    transcript.add(long)
    transcript.add(said("chat", {"text": "after it"}))
    rows = shown(transcript)
    assert len(rows) < 5
    assert rows[-2].endswith("… [Enter opens: 21029 characters]")
    transcript.toggle(long.id)
    opened = transcript.rows()
    assert "".join(row.text for row in opened[:-1]) == "x" * 21000
    assert max(len(row.text) for row in opened) <= 500


def test_a_proposal_shows_all_its_parameters() -> None:
    transcript = Transcript()
    arguments = {"pad": "x" * 300, "path": "/etc/shadow"}
    params = {"name": "x", "arguments": arguments, "task": {"ttl": 1}}
    call = {"method": "tools/call", "params": params}
    transcript.add(said("mcp/proposal:tools/call:x", call, to=["files"]))
    read = {"method": "resources/read", "params": {"uri": "file:///etc/shadow"}}
    transcript.add(said("mcp/proposal:resources/read", read, to=["files"]))
    transcript.add(said("mcp/proposal:tools/call:y", call, to=["files"]))  # invalid
    assert len(transcript.proposals) == 2
    first, second, _ = shown(transcript)
    assert 'path="/etc/shadow"' in first
    assert '{"task":{"ttl":1}}' in first
    assert "file:///etc/shadow" in second


@pytest.mark.parametrize(
    ("params", "seen"),
    [
        (
            {"name": "x", "arguments": {"cmd": "rm -rf /tmp/a      b "}},
            'x(cmd="rm -rf /tmp/a      b ")',
        ),
        ({"name": "x", "arguments": {"cmd": "a\u00a0b\u200b\t\n"}}, r'x(cmd="a\u00a0b\u200b\t\n")'),
        ({"name": "x", "arguments": {"a=1, b": 2}}, 'x("a=1, b"=2)'),
        ({"name": "x", "_meta": {"hidden": "  yes"}}, 'x() {"_meta":{"hidden":"  yes"}}'),
        ({"uri": "a  b", "arguments": {"c": 1}}, 'read {"uri":"a  b","arguments":{"c":1}}'),
    ],
)
def test_every_character_of_a_proposal_is_visible(params: dict[str, Any], seen: str) -> None:
    transcript = Transcript()
    method = "tools/call" if "name" in params else "read"
    kind = mcpp.Kind("mcp/proposal", method, params.get("name"))
    proposal = said(str(kind), {"method": method, "params": params}, to=["files"])
    transcript.add(proposal)
    assert shown(transcript) == [f"a|→ files: ◆ [1] open — proposes {seen}"]
    assert not transcript.is_truncated(proposal)
    transcript.toggle(proposal.id)
    opened = "".join(row.text for row in transcript.rows()[1:])
    assert json.loads(opened) == proposal.payload


@given(st.dictionaries(st.text(), st.text()))
def test_two_different_proposals_never_look_the_same(arguments: dict[str, str]) -> None:
    payload = {"method": "tools/call", "params": {"name": "x", "arguments": arguments}}
    line = describe(said("mcp/proposal:tools/call:x", payload, to=["files"]), None)
    assert line.isprintable()
    members = line.removeprefix("proposes x(").removesuffix(")")
    read: dict[str, str] = {}
    decode = json.JSONDecoder().raw_decode
    while members:
        plain = re.match(r"[\w.-]+", members, re.ASCII)
        name, end = (plain[0], plain.end()) if plain else decode(members)
        read[name], length = decode(members[end + 1 :])
        members = members[end + 1 + length :].removeprefix(", ")
    assert read == arguments


def test_an_open_context_shows_its_progress() -> None:
    transcript = Transcript()
    inside = mcpp.new_context("reasoning", id="r")
    progress = {"params": {"progress": 20, "message": "… once upon"}}
    transcript.add(said("mcp/notification:notifications/progress", progress, context=inside))
    assert shown(transcript) == ["|▸ [1] reasoning by a · open · 20 … once upon · 1 message"]
    transcript.add(said("conclusion", {"text": "the end"}, context=inside))
    assert shown(transcript) == ["|▸ [1] reasoning by a · ∎ the end · 2 messages"]


@given(st.lists(envelopes(kinds=st.sampled_from(KINDS)), max_size=3))
def test_the_rows_of_any_log_have_no_control_characters(
    log: list[mcpp.Envelope],
) -> None:
    transcript = Transcript()
    for envelope in log:
        transcript.add(envelope)
    rows = transcript.rows()
    for envelope in log:
        transcript.toggle(envelope.id)
        if envelope.context is not None:
            transcript.toggle(envelope.context.id)
    for row in rows + transcript.rows():
        assert clean(row.text) == row.text
        assert "\n" not in row.text


def test_only_the_end_of_a_long_log_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mcpp_agents.chat.transcript.KEPT_ENVELOPES", 10)
    transcript = Transcript()
    for number in range(100):
        inside = mcpp.new_context(id=f"c{number}") if number % 2 else None
        transcript.add(said("chat", {"text": str(number)}, context=inside))
    assert 10 <= len(shown(transcript)) <= 20
    assert shown(transcript)[-2] == "a|98"


def test_the_selection_stays_with_its_row(transcript: Transcript) -> None:
    """Rows that are added above it must not change which proposal is approved."""
    decided: list[str] = []
    screen = Screen(transcript, lambda: "", input=DummyInput(), output=DummyOutput())
    screen.on_approval = decided.append
    transcript.toggle("outer")
    payload = {"method": "tools/call", "params": {"name": "x"}}
    proposals = [said("mcp/proposal:tools/call:x", payload, to=["a"]) for _ in range(2)]
    for proposal in proposals:
        transcript.add(proposal)
    screen._fragments()
    screen._select(len(transcript.rows()) - 2)
    transcript.add(said("reflection", {"thought": "late"}, context=mcpp.new_context(id="outer")))
    screen._fragments()
    screen._approve()
    assert decided == [proposals[0].id]


@asynccontextmanager
async def chat_session(pod: MemoryPod) -> AsyncIterator[tuple[PipeInput, anyio.Event]]:
    """Run a chat as `alice`; yield its keyboard, and an event that is set when it ends."""
    left = anyio.Event()
    with create_pipe_input() as keys:

        async def chat() -> None:
            async with pod.connect("alice", last=100, own=True) as alice:
                await run_chat(alice, input=keys, output=DummyOutput())
            left.set()

        async with background() as tasks:
            tasks.start_soon(chat)
            with anyio.fail_after(BOUND):
                yield keys, left


@pytest.mark.anyio
@pytest.mark.rule("P-72")
async def test_a_person_announces_a_card(pod: MemoryPod) -> None:
    async with pod.connect("bob") as bob, chat_session(pod) as (keys, left):
        await bob.wait_for_presence("alice", BOUND)
        card = await bob.cards.get("alice", wait_seconds=BOUND)
        assert card is not None
        assert card.answers == ("chat", "elicitation")
        assert not card.may_offer("tools")
        keys.send_text("/quit\r")
        await left.wait()


def safe() -> Participant:
    agent = Participant("safe")

    @agent.tool
    async def unlock(code: int, note: str = "") -> str:
        return f"unlocked with {code}"

    return agent


@pytest.mark.anyio
async def test_a_typed_line_is_sent_and_addressed_to_mentioned_participants(pod: MemoryPod) -> None:
    async with pod.connect("bob") as bob, chat_session(pod) as (keys, left):
        keys.send_text("hello @bob and @carol\r")
        received = await anext(message async for message in bob if message.kind == "chat")
        assert (received.sender, received.to) == ("alice", ("bob",))
        assert received.text == "hello @bob and @carol"
        keys.send_text("/quit\r")
        await left.wait()


@pytest.mark.anyio
async def test_a_filter_names_a_context_by_its_number(pod: MemoryPod) -> None:
    transcript = Transcript()
    transcript.add(said("chat", {"text": "hello"}))
    for id, above in (("outer", None), ("inner", "outer")):
        place = mcpp.new_context("task", id=id, parent=above)
        transcript.add(said("reflection", {"thought": id}, context=place))
    transcript.toggle("outer")
    before = shown(transcript)
    notices: list[str] = []
    async with pod.connect("alice") as alice, background() as tasks:
        actions = Actions(alice, transcript, tasks, notices.append)
        await actions.do("/filter context:[2] or context:[1]+ from:carol")
        assert shown(transcript) == [before[1], before[3]]
        await actions.do("/filter context:[7]")
        await actions.do("/fliter main")
        await actions.do("/filter")
        assert shown(transcript) == before
    assert notices[1:3] == [
        "there is no item number '7'",
        "Unknown command /fliter; /help lists the commands.",
    ]


@pytest.mark.anyio
@pytest.mark.parametrize("is_inside", [False, True])
@pytest.mark.parametrize("approval", ["/approve 1\r", "\ta", "\t/approve 1\r"])
async def test_a_proposal_is_approved_by_a_command_or_by_a_key(
    pod: MemoryPod, approval: str, is_inside: bool
) -> None:
    async with pod.run(safe()), pod.connect("bob") as bob:
        place = bob.context("reasoning") if is_inside else bob
        proposal = await place.propose("safe", "unlock", code=7)
        async with chat_session(pod) as (keys, left):
            while "alice" not in bob.participants:
                await anext(bob)
            # The echo follows the history, so the next command finds the proposal.
            keys.send_text("here\r")
            await anext(message async for message in bob if message.text == "here")
            keys.send_text(approval)
            assert (await proposal.result(BOUND)).text == "unlocked with 7"
            assert proposal.fulfilled_by == "alice"
            keys.send_text("\x03")
            await left.wait()


@pytest.mark.anyio
async def test_an_approved_call_goes_on_after_the_approver_leaves(pod: MemoryPod) -> None:
    may_end = anyio.Event()
    async with pod.run(waiting("slow", may_end)), pod.connect("bob") as bob:
        proposal = await bob.propose("slow", "work")
        async with chat_session(pod) as (keys, left):
            keys.send_text("here\r")
            await anext(message async for message in bob if message.text == "here")
            keys.send_text("/approve 1\r")
            kind = "mcp/request:tools/call:work"
            await anext(message async for message in bob if message.kind == kind)
            keys.send_text("\x03")
            await left.wait()
        may_end.set()
        assert (await proposal.result(BOUND)).text == "done"


@pytest.mark.anyio
async def test_the_failure_of_an_approved_call_is_reported_to_the_approver(pod: MemoryPod) -> None:
    notices: list[str] = []
    transcript = Transcript("alice")
    async with (
        pod.run(safe()),
        pod.connect("bob") as bob,
        pod.connect("alice", own=True) as alice,
        background() as tasks,
    ):
        actions = Actions(alice, transcript, tasks, notices.append)
        for code in ("seven", 7):
            proposal = await bob.context("reasoning").propose("safe", "unlock", code=code)
            with anyio.fail_after(BOUND):
                async for message in alice:
                    transcript.add(message.envelope)
                    actions.observe(message)
                    if message.id == proposal.id:
                        actions.approve(proposal.id)
                    if message.kind.startswith("mcp/response"):
                        break
    assert len(notices) == 1
    assert notices[0].startswith("safe, unlock: failed, ")


@pytest.mark.anyio
async def test_a_truncated_proposal_is_opened_before_it_can_be_approved(pod: MemoryPod) -> None:
    async with pod.run(safe()), pod.connect("bob") as bob:
        proposal = await bob.propose("safe", "unlock", code=7, note="x" * 2000)
        async with chat_session(pod) as (keys, _):
            for text in ("here\r", "/approve 1\rstill here\r"):
                keys.send_text(text)
                typed = text.rpartition("\r")[0].rpartition("\r")[2]
                await anext(message async for message in bob if message.text == typed)
            with pytest.raises(mcpp.McppError):
                await proposal.result(0)
            assert proposal.fulfilled_by is None
            keys.send_text("/approve 1\r")
            assert (await proposal.result(BOUND)).text == "unlocked with 7"


@pytest.mark.anyio
async def test_a_chat_that_is_closed_for_good_shows_the_reason(pod: MemoryPod) -> None:
    drawn = ""
    ended = anyio.Event()

    class RecordingOutput(DummyOutput):
        def write(self, data: str) -> None:
            nonlocal drawn
            drawn += data
            if "disconnected, Ctrl-C leaves" in drawn:
                ended.set()

    async def chat() -> None:
        async with pod.connect("alice", own=True) as alice:
            with create_pipe_input() as keys:
                await run_chat(alice, input=keys, output=RecordingOutput())

    async with pod.connect("bob") as bob, background() as tasks:
        tasks.start_soon(chat)
        with anyio.fail_after(BOUND):
            while "alice" not in bob.participants:
                await anext(bob)
            async with pod.connect("alice"):
                await ended.wait()
    assert "the connection is closed (4500): replaced" in drawn


@pytest.mark.anyio
@pytest.mark.parametrize("rejection", ["/reject 1 too risky\r", "\trtoo risky\r"])
async def test_a_proposal_is_rejected_with_a_reason(pod: MemoryPod, rejection: str) -> None:
    async with pod.run(safe()), pod.connect("bob") as bob:
        proposal = await bob.propose("safe", "unlock", code=7)
        async with chat_session(pod) as (keys, _):
            keys.send_text("here\r")
            await anext(message async for message in bob if message.text == "here")
            keys.send_text(rejection)
            await anext(message async for message in bob if message.kind == "mcp/reject")
            with pytest.raises(mcpp.McppError):
                await proposal.result(0)
            assert [no.text for _, no in proposal.rejections] == ["too risky"]


@pytest.mark.anyio
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux for a real terminal")
async def test_it_works_in_a_real_terminal(
    sockets: SocketPod, commands: Commands, tmp_path: Path
) -> None:
    def tmux(*arguments: str) -> str:
        command = ["tmux", "-S", str(tmp_path / "tmux"), *arguments]
        env = commands.environ("alice")
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        return done.stdout

    async def wait_for(text: str) -> str:
        with anyio.fail_after(BOUND):
            # A terminal does not signal that it has drawn something, so poll.
            while text not in (screen := tmux("capture-pane", "-p")):  # noqa: ASYNC110
                await anyio.sleep(0.1)
        return screen

    async with sockets.connect("bob") as bob:
        await bob.send("chat", {"text": "a \x1b[31mred\x1b[0m trick"})
        await bob.send("chat", {"text": "y" * 95 + "alice  I approve"})
        async with bob.context("reasoning", id="r1") as thinking:
            await thinking.send("reflection", {"thought": "inside"})
            await thinking.conclude("found")
        line = f"{MCPP} chat; echo ended with $?; cat"
        tmux("-f", "/dev/null", "new-session", "-d", "-x", "100", "-y", "24", line)
        try:
            screen = await wait_for("▸ [1] reasoning by bob · ∎ found · 2 messages")
            assert "inside" not in screen
            assert "[31mred" in screen  # shown, not interpreted
            assert "\n    alice  I approve" in screen  # indented, so not a row of alice's
            tmux("send-keys", "Tab", "Enter")
            await wait_for("bob  inside")
            tmux("send-keys", "Tab", "/who", "Enter")
            await wait_for("Participants: alice, bob.")
            tmux("send-keys", "hi from here", "Enter")
            await wait_for("hi from here")
            tmux("send-keys", "C-c")
            await wait_for("ended with 0")
        finally:
            tmux("kill-server")


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "the destination"},
        "boxes": {"type": "integer", "default": 2},
        "gift": {"type": "boolean"},
        "extras": {"type": "array", "items": {"enum": ["card", "bow"]}},
    },
    "required": ["city", "gift"],
}


@asynccontextmanager
async def asked_person(
    pod: MemoryPod, schema: dict[str, Any]
) -> AsyncIterator[tuple[Actions, Transcript, list[Any]]]:
    """A person in the chat whom `server` asks; yield what the server gets as answers."""
    answers: list[Any] = []
    async with (
        pod.connect("ada", own=True) as ada,
        pod.connect("server") as server,
        background() as tasks,
    ):
        transcript = Transcript("ada")
        actions = Actions(ada, transcript, tasks, transcript.notify)
        shown_question = anyio.Event()

        async def listen() -> None:
            async for message in ada:
                transcript.add(message.envelope)
                actions.observe(message)
                if "elicitation" in message.kind:
                    shown_question.set()

        async def ask() -> None:
            params = {"message": "Where to?", "requestedSchema": schema}
            answers.append(await server.request("ada", "elicitation/create", params))

        tasks.start_soon(listen)
        async with anyio.create_task_group() as asking:
            asking.start_soon(ask)
            with anyio.fail_after(BOUND):
                await shown_question.wait()
                yield actions, transcript, answers


@pytest.mark.anyio
@pytest.mark.rule("P-61")
async def test_a_question_is_shown_and_answered_by_typing(pod: MemoryPod) -> None:
    async with asked_person(pod, SCHEMA) as (actions, transcript, answers):
        text = "\n".join(shown(transcript))
        assert "[1] server asks: Where to?" in text
        assert "city: text (required) the destination" in text
        assert "extras: several of card, bow" in text
        for wrong, problem in [
            ("/answer 1 city=Oslo", "missing: gift"),
            ("/answer 1 city=Oslo gift=perhaps", "gift: yes or no"),
            ("/answer 1 town=Oslo", "unknown: town"),
            ("/answer 1 city=Oslo gift=no extras=cat", "extras: one of card, bow"),
            ("/answer 1 {city", "not a JSON object"),
            ("/answer 7 x", "there is no item number"),
        ]:
            await actions.do(wrong)
            assert problem in shown(transcript)[-1]
        await actions.do('/answer 1 city="New York" gift=yes extras=card,bow')
    content = {"city": "New York", "gift": True, "extras": ["card", "bow"], "boxes": 2}
    assert answers == [{"action": "accept", "content": content}]


@pytest.mark.anyio
async def test_the_only_value_of_a_question_needs_no_name(pod: MemoryPod) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    async with asked_person(pod, schema) as (actions, _, answers):
        await actions.do("/answer 1 Ada Lovelace")
    assert answers == [{"action": "accept", "content": {"name": "Ada Lovelace"}}]


@pytest.mark.anyio
async def test_a_question_is_declined_once(pod: MemoryPod) -> None:
    async with asked_person(pod, SCHEMA) as (actions, transcript, answers):
        await actions.do("/decline 1")
        while not answers:
            await anyio.lowlevel.checkpoint()
        await actions.do("/decline 1")
        assert "not an open question" in shown(transcript)[-1]
    assert answers == [{"action": "decline"}]


@pytest.mark.rule("P-51")
def test_a_proposal_shows_its_reason_and_its_preview() -> None:
    transcript = Transcript()
    payload = {
        "method": "tools/call",
        "params": {"name": "x", "arguments": {}},
        "reason": "the date\nis wrong",
        "preview": {"before": "1926", "after": "2026\nnew"},
    }
    transcript.add(said("mcp/proposal:tools/call:x", payload, to=["files"]))
    assert shown(transcript) == [
        "a|→ files: ◆ [1] open — proposes x() because: the date is wrong",
        "  |- 1926",
        "  |+ 2026",
        "  |+ new",
    ]


@pytest.mark.anyio
@pytest.mark.rule("P-51")
async def test_a_proposal_without_its_proposer_is_approved_twice(pod: MemoryPod) -> None:
    async with pod.run(safe()), pod.connect("carol") as carol:
        async with pod.connect("bob") as bob:
            await bob.propose("safe", "unlock", code=7)
        async with chat_session(pod) as (keys, left):
            keys.send_text("here\r")
            await anext(message async for message in carol if message.text == "here")
            keys.send_text("/approve 1\r")
            keys.send_text("asked\r")
            before = [message async for message in until(carol, "asked")]
            assert not any(message.kind.startswith("mcp/request") for message in before)
            keys.send_text("/approve 1\r")
            answer = "mcp/response:tools/call:unlock"
            await anext(message async for message in carol if message.kind == answer)
            keys.send_text("\x03")
            await left.wait()


async def until(pod: mcpp.Pod, text: str) -> AsyncIterator[mcpp.Message]:
    async for message in pod:
        yield message
        if message.text == text:
            return


@pytest.mark.anyio
async def test_a_name_is_completed_and_an_absent_one_is_reported(pod: MemoryPod) -> None:
    screen = Screen(Transcript(), lambda: "", input=DummyInput(), output=DummyOutput())
    screen.names = lambda: ["analyst", "anna", "bob"]
    for typed, completed in (
        ("hi @b", "hi @bob "),
        ("@an", "@an"),
        ("@ana", "@analyst "),
        ("@x", "@x"),
    ):
        screen._typed.document = Document(typed)
        assert screen._complete_name()
        assert screen._typed.text == completed
    screen._typed.document = Document("no name")
    assert not screen._complete_name()
    notices: list[str] = []
    async with pod.connect("alice", own=True) as alice, background() as tasks:
        actions = Actions(alice, Transcript("alice"), tasks, notices.append)
        await actions.do("@alcie and @alice: hello")
    assert notices == ["@alcie is not in the pod, and may not see this. Did you mean @alice?"]
