"""`mcpp prompt`: what a participant's model sees, and whether an answer matches its record."""

import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

import mcpp
from mcpp.model_prompts import PromptRecord
from mcpp.prompts import Prompt
from mcpp_agents.history.transcript import to_markdown
from mcpp_agents.model import ModelAgent, ModelLimits, Reply, ToolUse
from mcpp_agents.model.providers import OnText, Tools, ignore_text
from mcpp_agents.prompt.verification import verify
from mcpp_gateway.log_tools.commands import main as log_tool
from tests.agents.processes import BOUND, Commands
from tests.interaction.conftest import SocketPod
from tests.mcpp.prompts.logs import png

pytestmark = pytest.mark.anyio


class NotedPrompts:
    """A provider that answers from a script and keeps the prompts it was given."""

    def __init__(self, *replies: Reply) -> None:
        self.prompts: list[Prompt] = []
        self._replies = list(replies)

    async def reply(
        self, prompt: Prompt, tools: Tools, max_tokens: int, on_text: OnText = ignore_text
    ) -> Reply:
        self.prompts.append(prompt)
        return self._replies.pop(0)


SEARCH = Reply("I look it up.", (ToolUse("books__find", {"title": "Dune"}),))


def books() -> mcpp.Participant:
    agent = mcpp.Participant("books")

    @agent.tool
    def find(title: str) -> str:
        """Find a book."""
        return f"{title}, 1965. " * 200

    return agent


@asynccontextmanager
async def asked(
    sockets: SocketPod, provider: NotedPrompts, *, system: str = "", prompt_tokens: int = 60_000
) -> AsyncIterator[tuple[mcpp.Pod, mcpp.Message]]:
    """Ask a model agent; yield the connection of who asked, and the answer."""
    limits = ModelLimits(grace_seconds=0.2, prompt_tokens=prompt_tokens)
    agent = ModelAgent("mind", provider, system=system, limits=limits)
    async with sockets.connect("alice") as alice:
        await alice.send("chat", {"text": "earlier " * 50})
        async with sockets.run(books()), sockets.run(agent.participant):
            question = await alice.send("chat", {"text": "When was Dune written?"}, to=["mind"])
            await alice.send("chat", {"text": "and hurry"})
            with anyio.fail_after(BOUND):
                async for message in alice:
                    if message.kind == "chat" and message.correlation_id == question.id:
                        break
            yield alice, message


@pytest.mark.rule("P-38")
@pytest.mark.parametrize("prompt_tokens", [60_000, 1500])
async def test_an_answer_is_checked_against_the_prompt_that_produced_it(
    sockets: SocketPod, commands: Commands, prompt_tokens: int
) -> None:
    provider = NotedPrompts(SEARCH, SEARCH, Reply("In 1965."))
    async with asked(sockets, provider, prompt_tokens=prompt_tokens) as (alice, answer):
        await alice.send("chat", {"text": "what came later changes nothing"})
        conclusion = (await alice.history({"kind": "conclusion"}).all())[0]
        for id in (answer.id, conclusion.id):
            code, output, error = await commands.run("bob", "prompt", "--verify", id)
            assert (code, error) == (0, "")
            lines = [line.split() for line in output.splitlines()]
            assert [line[0] for line in lines] == ["matches"] * 3
            assert [line[-1] for line in lines] == [one.digest for one in provider.prompts]


@pytest.mark.rule("P-38")
async def test_the_pictures_of_a_prompt_are_part_of_its_record(
    sockets: SocketPod, commands: Commands
) -> None:
    provider = NotedPrompts(SEARCH, Reply("In 1965."))
    async with sockets.connect("carol") as carol:
        cover = await carol.attach(base64.b64decode(png(9, 9)), name="cover.png")
        await carol.send("chat", "the cover", attachments=[cover])
    async with asked(sockets, provider) as (_, answer):
        assert png(9, 9) in json.dumps(provider.prompts[-1].anthropic())
        code, output, error = await commands.run("bob", "prompt", "--verify", answer.id)
        assert (code, error) == (0, "")
        assert [line.split()[0] for line in output.splitlines()] == ["matches"] * 2
        code, output, _ = await commands.run(
            "bob", "prompt", "--viewer", "mind", "--format", "anthropic"
        )
        assert (code, png(9, 9) in output) == (0, True)


@pytest.mark.rule("P-38")
async def test_a_false_record_is_detected(
    sockets: SocketPod, capsys: pytest.CaptureFixture[str]
) -> None:
    async with asked(sockets, NotedPrompts(Reply("In 1965."))) as (alice, _):
        true = (await alice.history({"kind": "conclusion"}).all())[0]
        assert true.context is not None
        record = msgspec.convert(true.context.metadata["prompt"], PromptRecord)

        async def verify_claim(claimed: object) -> int:
            async with alice.context("reasoning") as forged:
                said = await forged.conclude("trust me", prompt=claimed)
            return await verify(alice, said.id, "")

        # It is mind's prompt, which alice claims for herself: viewer and quoting differ, too.
        for changes in ({}, {"digest": "0" * 64}, {"budget": 800}):
            claimed = msgspec.to_builtins(msgspec.structs.replace(record, **changes))
            assert await verify_claim(claimed) == 1
            assert "differs from its record" in capsys.readouterr().err
        for changes, problem in (
            ({"first": true.id}, "does not have the end"),
            ({"first": "gone"}, "no longer has the beginning"),
            ({"at": "gone"}, "does not have the end"),
            ({"question": "gone"}, "the log has no 'gone'"),
            ({"system": "0" * 64}, "pass them with --system FILE"),
        ):
            claimed = msgspec.to_builtins(msgspec.structs.replace(record, **changes))
            with pytest.raises(mcpp.McppError, match=problem):
                await verify_claim(claimed)
        for odd in (5, {"digest": 1}, None):
            with pytest.raises(mcpp.McppError, match="has no record of a prompt"):
                await verify_claim(odd)
        assert await verify(alice, true.id, "") == 0


async def test_instructions_are_needed_to_check_a_prompt(
    sockets: SocketPod, commands: Commands, tmp_path: Path
) -> None:
    instructions = tmp_path / "system.txt"
    instructions.write_text("Be brief.", encoding="utf-8")
    provider = NotedPrompts(Reply("In 1965."))
    async with asked(sockets, provider, system="Be brief.") as (alice, answer):
        options = ("prompt", "--verify", answer.id)
        code, _, error = await commands.run("bob", *options)
        assert (code, "--system FILE" in error) == (1, True)
        code, output, _ = await commands.run("bob", *options, "--system", str(instructions))
        assert (code, output.split()[0]) == (0, "matches")
        with pytest.raises(mcpp.McppError, match="others"):
            await verify(alice, answer.id, "Be long.")
        code, _, error = await commands.run("bob", *options, "--system", "absent")
        assert (code, "No such file" in error) == (1, True)


@pytest.mark.parametrize("format", ["anthropic", "openai", "markdown"])
async def test_the_prompt_at_a_point_is_what_the_model_was_shown(
    sockets: SocketPod, commands: Commands, format: str
) -> None:
    provider = NotedPrompts(SEARCH, Reply("In 1965."))
    async with asked(sockets, provider) as (alice, _):
        (conclusion,) = await alice.history({"kind": "conclusion"}).all()
        assert conclusion.context is not None
        record: dict[str, Any] = conclusion.context.metadata["prompt"]
        code, output, error = await commands.run(
            *("bob", "prompt", "--viewer", "mind", "--at", record["at"]),
            *("--question", record["question"], "--format", format),
        )
    shown = provider.prompts[-1]
    assert code == 0
    match format:
        case "anthropic":
            assert json.loads(output) == shown.anthropic()
        case "openai":
            assert json.loads(output) == shown.openai_chat()
        case _:
            assert output == shown.markdown()
    assert f"{shown.tokens:,} tokens of 60,000" in error
    assert "left out: housekeeping: " in error


async def test_the_report_says_what_was_reduced_and_left_out(
    sockets: SocketPod, commands: Commands
) -> None:
    async with sockets.connect("alice") as alice:
        async with alice.context("reasoning", id="done") as done:
            for _ in range(5):
                await done.send("reflection", {"thought": "hm"})
            await done.conclude("so be it")
        last = await alice.send("chat", {"text": "\x1b[2Jlast"})
        await alice.send("chat", {"text": "too late"})
        code, output, error = await commands.run(
            "bob", "prompt", "--viewer", "analyst", "--at", last.id, "--details"
        )
        assert code == 0
        assert "[folded; handle " in output
        assert "too late" not in output
        assert "\x1b" not in output
        assert "reduced: folded: 1" in error
        assert "folded: 5" in error
        assert error.count("left out, folded") == 5
        long = await commands.run("bob", "prompt", "--viewer", "analyst", "--budget", "10")
        assert (long[0], "the budget is 10" in long[2]) == (1, True)
        unknown = await commands.run("bob", "prompt", "--viewer", "analyst", "--at", "gone")
        assert (unknown[0], "the log has no 'gone'" in unknown[2]) == (1, True)


async def test_what_was_erased_is_in_no_further_prompt(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sockets = SocketPod(log=tmp_path)
    try:
        provider = NotedPrompts(Reply("Noted."), Reply("What secret?"))
        agent = ModelAgent("mind", provider, limits=ModelLimits(grace_seconds=0.1))
        async with (
            sockets.run(agent.participant),
            sockets.connect("files"),
            sockets.connect("bob") as bob,
            sockets.connect("alice") as alice,
        ):
            await alice.context("task", id="t").send("chat", {"text": "my secret is 1234"})
            proposal = await bob.propose("files", "find", name="x")
            await alice.approve(proposal.envelope)
            noted = await ask(bob, "Remember it.")
            assert "1234" in provider.prompts[0].markdown()
            await anyio.to_thread.run_sync(sockets.drain)
            log = str(tmp_path / "test")
            assert log_tool(["erase", log, "--participant", "alice"]) == 0
            await anyio.to_thread.run_sync(sockets.start)
            await erased(bob)
            await ask(bob, "What is it?")
            assert "1234" not in provider.prompts[1].markdown()
            (found,) = (await bob.context_of("t")).messages
            assert (found.erased, found.payload, found.sender) == (True, None, "alice")
            assert "> (erased)" in to_markdown(await bob.context_of("t"))
            assert await bob.open_proposals() == []  # the approval was erased, too
            assert await verify(bob, noted.id, "") == 1
            assert "messages were erased" in capsys.readouterr().err
    finally:
        sockets.close()


async def ask(pod: mcpp.Pod, text: str) -> mcpp.Message:
    question = await pod.send("chat", {"text": text}, to=["mind"])
    with anyio.fail_after(BOUND):
        async for message in pod:
            if message.kind == "chat" and message.correlation_id == question.id:
                return message
    raise AssertionError


async def erased(pod: mcpp.Pod) -> None:
    with anyio.fail_after(BOUND):
        async for message in pod:
            if message.kind == "system/erased":
                return
