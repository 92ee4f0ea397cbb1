"""Texts that others see while they are written, over memory and over a socket."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

import mcpp
from mcpp import kinds
from mcpp.client.factory import new_id
from mcpp.errors import AbsentError, EncodeError, NoAnswerError, Refused, TooLargeError
from mcpp.live import LiveTexts
from mcpp.payloads import LiveText
from mcpp.testing import MemoryPod
from tests.interaction.conftest import AnyPod

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(30)]

WORDS = ["Paris ", "is ", "the ", "capital ", "of ", "France."]


def writer(pause: anyio.Event | None = None) -> mcpp.Participant:
    agent = mcpp.Participant("writer")

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        async with message.stream() as out:
            for word in WORDS:
                await out.write(word)
            if pause is not None:
                await pause.wait()

    return agent


async def watch(pod: mcpp.Pod, until: str) -> tuple[list[str], LiveTexts]:
    """Return what is seen of the texts of others after each message, up to one of a kind."""
    texts, seen = LiveTexts(), []
    with anyio.fail_after(10):
        async for message in pod:
            texts.observe(message.envelope, 0.0)
            seen += [text.text for text in texts]
            if message.kind == until:
                return seen, texts
    raise AssertionError


@pytest.mark.rule("P-70", "P-71", "G-80")
async def test_a_streamed_reply_grows_for_those_who_watch_and_is_then_replaced(
    harness: AnyPod,
) -> None:
    finish = anyio.Event()
    async with (
        harness.run(writer(finish)),
        harness.connect("anna", live=True) as anna,
        harness.connect("plain") as plain,
    ):
        question = await anna.send("chat", "What is the capital?", to="writer")
        texts = LiveTexts()
        with anyio.fail_after(10):
            async for message in anna:
                texts.observe(message.envelope, 0.0)
                if any(text.text == "".join(WORDS) for text in texts):
                    break
            (text,) = texts
            assert (text.sender, text.to, text.in_reply_to) == ("writer", ("anna",), question.id)
            finish.set()
            reply = await anext(anna)
        assert reply.id == text.id
        assert reply.correlation_id == question.id
        assert reply.text == "".join(WORDS)
        texts.observe(reply.envelope, 0.0)
        assert list(texts) == []
        assert anna.position == reply.id
        # Without `live`, only what is in the log.
        heard = [(await anext(plain)).kind for _ in range(2)]
        assert "live/text" not in heard
        past = [each.kind async for each in anna.history()]
        assert "live/text" not in past


async def test_live_kinds_of_ones_own_are_sent_without_an_echo(harness: AnyPod) -> None:
    async with harness.connect("ada") as ada, harness.connect("anna", live=True) as anna:
        with anyio.fail_after(10):
            part = mcpp.new_envelope("live/cursor", {"line": 8}, sender="ada")
            for sent in (
                await ada.send("live/cursor", {"line": 7}),
                await ada.send_envelope(part),
            ):
                message = await anext(anna)
                while message.kind != "live/cursor":
                    message = await anext(anna)
                assert (message.id, message.payload) == (sent.id, sent.payload)
        assert "live/cursor" not in [each.kind async for each in anna.history()]


async def test_a_block_that_raises_sends_no_message_and_ends_the_parts() -> None:
    pod = MemoryPod()
    async with pod.connect("writer") as author, pod.connect("anna", live=True) as anna:
        texts = LiveTexts()
        out = author.stream()
        await out.write("half of")
        texts.observe((await anext(anna)).envelope, 0.0)
        assert [text.text for text in texts] == ["half of"]
        with pytest.raises(ValueError, match="no"):
            async with out:
                raise ValueError("no")
        message = await anext(anna)
        assert message.payload_as(LiveText).ended
        assert texts.observe(message.envelope, 0.0)
        assert list(texts) == []
        assert out.envelope is None


@pytest.mark.rule("P-70")
async def test_a_participant_that_takes_the_announced_id_cannot_prevent_the_message() -> None:
    pod = MemoryPod()
    async with (
        pod.connect("writer") as author,
        pod.connect("mallory", live=True) as mallory,
        pod.connect("anna", live=True) as anna,
    ):
        async with author.stream(to="anna") as out:
            await out.write("all of it")
            part = await anext(mallory)
            while part.kind != "live/text":
                part = await anext(mallory)
            await mallory.send("chat", "mine", id=part.correlation_id)
        seen = [await anext(anna) for _ in range(3)]
        assert [(each.sender, each.kind, each.text) for each in seen] == [
            ("writer", "live/text", "all of it"),
            ("mallory", "chat", "mine"),
            ("writer", "chat", "all of it"),
        ]
        assert out.envelope is not None
        assert out.envelope.id != out.id


@pytest.mark.rule("P-71")
async def test_parts_after_the_message_or_by_another_sender_are_not_part_of_it() -> None:
    pod = MemoryPod()
    async with (
        pod.connect("writer") as author,
        pod.connect("mallory") as mallory,
        pod.connect("anna", live=True) as anna,
    ):
        texts = LiveTexts()
        id = new_id()
        for sender, said in ((author, "true"), (mallory, "false")):
            part = LiveText(offset=0, text=said)
            await sender._connection.send_live(
                mcpp.new_envelope("live/text", part, sender=sender.me, correlation_id=id)
            )
            texts.observe((await anext(anna)).envelope, 0.0)
        assert {text.sender: text.text for text in texts} == {"writer": "true", "mallory": "false"}
        await author.send("chat", "true story", id=id)
        await author._connection.send_live(
            mcpp.new_envelope(
                "live/text", LiveText(offset=4, text="!"), sender="writer", correlation_id=id
            )
        )
        await author.send("chat", "next")
        assert [(await anext(anna)).kind for _ in range(2)] == ["chat", "chat"]


async def test_a_stream_in_a_context_publishes_parts_once_the_context_is_live() -> None:
    pod = MemoryPod()
    async with pod.connect("writer") as author, pod.connect("anna", live=True) as anna:
        async with author.context("task") as task:
            async with task.stream(kinds.REFLECTION) as out:
                await out.write("first")
            async with task.stream() as out:
                await out.write("second")
        kinds_seen = [(await anext(anna)).kind for _ in range(3)]
        assert kinds_seen == ["reflection", "live/text", "chat"]


async def test_what_can_be_written_is_checked() -> None:
    pod = MemoryPod()
    async with pod.connect("writer") as author:
        with pytest.raises(EncodeError):
            author.stream("mcp/request:tools/call:x")
        async with author.stream() as out:
            with pytest.raises(TypeError, match="takes a string, not int"):
                await out.write(1)  # type: ignore[arg-type]
        assert out.envelope is None  # nothing was written
        with pytest.raises(RuntimeError):
            await out.write("late")
        with pytest.raises(TooLargeError):
            async with author.stream() as out:
                await out.write("x" * 2_000_000)


@pytest.mark.rule("P-70", "G-81")
async def test_a_participant_without_the_capability_sends_one_part_and_the_message() -> None:
    pod = MemoryPod()
    pod.add("writer", [{"kind": "chat"}])
    async with pod.connect("writer") as author, pod.connect("anna", live=True) as anna:
        async with author.stream() as out:
            for word in WORDS:
                await out.write(word)
                await anyio.sleep(0.06)
        assert (await anext(anna)).text == "".join(WORDS)
        assert pod.gateway._pod.refused == {"capability_violation": 1}  # type: ignore[attr-defined]


@pytest.mark.parametrize("limits", [{"messages_per_second": 5, "burst": 10}])
@pytest.mark.rule("P-70", "P-44")
async def test_parts_leave_half_of_the_rate_to_what_is_logged(
    harness: AnyPod, limits: dict[str, Any]
) -> None:
    async with harness.connect("writer") as author, harness.connect("anna", live=True) as anna:
        with anyio.fail_after(20):
            async with author.stream() as out:
                for number in range(30):
                    await out.write(f"{number} ")
                    await anyio.sleep(0.02)
            for number in range(3):
                await author.send("chat", f"{number}", rate_limit_seconds=0)
        seen, _ = await watch(anna, "chat")
        assert seen
        assert len(seen) < 15


async def test_asking_returns_the_reply_and_passes_its_text_on(harness: AnyPod) -> None:
    finish = anyio.Event()
    async with harness.run(writer(finish)), harness.connect("anna") as anna:
        pieces: list[str] = []

        def hear(piece: str) -> None:
            pieces.append(piece)
            if "".join(pieces) == "".join(WORDS):
                finish.set()

        with anyio.fail_after(10):
            reply = await anna.ask("writer", "What is the capital?", on_text=hear)
        assert reply.text == "".join(pieces) == "".join(WORDS)
        with pytest.raises(AbsentError):
            await anna.ask("nobody", "Are you there?")


async def test_a_reply_that_is_begun_anew_is_heard_from_its_beginning(harness: AnyPod) -> None:
    agent = mcpp.Participant("writer")
    heard = [anyio.Event(), anyio.Event()]

    @agent.on("chat")
    async def answer(message: mcpp.Message) -> None:
        first = message.stream()
        await first.write("Let me look.")
        await heard[0].wait()
        await first.end()  # as an agent does that goes on to call a tool
        async with message.stream() as second:
            await second.write("It is Oslo.")
            await heard[1].wait()

    async with harness.run(agent), harness.connect("anna") as anna:
        pieces: list[str] = []

        def hear(piece: str) -> None:
            pieces.append(piece)
            heard[len(pieces) - 1].set()

        with anyio.fail_after(10):
            reply = await anna.ask("writer", "What is the capital?", on_text=hear)
        assert (pieces, reply.text) == (["Let me look.", "It is Oslo."], "It is Oslo.")


async def test_a_question_that_is_given_up_is_cancelled_and_only_the_one_asked_can_answer(
    harness: AnyPod,
) -> None:
    async with (
        harness.connect("anna") as anna,
        harness.connect("bob") as bob,
        harness.connect("eve") as eve,
    ):
        await anext(anna)
        await anext(anna)

        async def answer_for_another() -> None:
            question = await anext(eve)
            await question.reply("I am Bob.")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(answer_for_another)
            with pytest.raises(NoAnswerError):
                await anna.ask("bob", "Well?", timeout=0.5)
        seen = [await anext(bob) for _ in range(4)]
        assert "mcp/notification:notifications/cancelled" in [each.kind for each in seen]


def counter() -> mcpp.Participant:
    agent = mcpp.Participant("counter")

    @agent.tool
    async def count(upto: int) -> AsyncIterator[str | mcpp.Progress]:
        """Count aloud."""
        for number in range(upto):
            yield mcpp.Progress(number, upto)
            yield f"{number} "
            await anyio.sleep(0.06)

    @agent.tool
    async def fail() -> AsyncIterator[str]:
        yield "so far"
        raise ValueError("so good")

    @agent.tool
    async def confused() -> AsyncIterator[int]:
        yield 1

    return agent


async def test_an_async_generator_is_a_tool_that_streams_its_text(harness: AnyPod) -> None:
    async with (
        harness.run(counter()),
        harness.connect("anna") as anna,
        harness.connect("watcher", live=True) as watcher,
    ):
        pieces: list[str] = []
        progress: list[float] = []
        with anyio.fail_after(10):
            result = await anna.call(
                "counter",
                "count",
                upto=4,
                on_text=pieces.append,
                on_progress=lambda each: progress.append(each.progress),
            )
            listed = await anna.request("counter", "tools/list")
        assert result.text == "0 1 2 3 "
        assert result.text.startswith("".join(pieces))
        assert len(pieces) >= 2
        assert progress[0] == 0
        assert "outputSchema" not in listed["tools"][0]
        texts = LiveTexts()
        with anyio.fail_after(10):
            while True:
                message = await anext(watcher)
                texts.observe(message.envelope, 0.0)
                if message.kind.startswith(kinds.RESPONSE):
                    break
        assert list(texts) == []
        with pytest.raises(mcpp.ToolError, match="so good"):
            await anna.call("counter", "fail")
        with pytest.raises(mcpp.ToolError, match="yielded int"):
            await anna.call("counter", "confused")


async def test_a_cancelled_tool_ends_its_parts() -> None:
    pod = MemoryPod()
    async with (
        pod.run(counter()),
        pod.connect("anna") as anna,
        pod.connect("watcher", live=True) as watcher,
    ):
        with pytest.raises(NoAnswerError):
            await anna.call("counter", "count", upto=1000, timeout=0.3)
        with anyio.fail_after(10):
            while True:
                message = await anext(watcher)
                if message.kind == "live/text" and message.payload_as(LiveText).ended:
                    break


@pytest.mark.rule("G-84")
async def test_a_suspected_loop_is_an_error_for_the_sender() -> None:
    pod = MemoryPod(limits={"max_hops": 2}, people=["anna"])
    async with pod.connect("anna"), pod.connect("bot") as bot:
        await bot.send("chat", "one")
        await bot.send("chat", "two")
        with pytest.raises(Refused, match="without a person") as caught:
            await bot.send("chat", "three")
        assert caught.value.code == "loop_suspected"


async def test_a_long_text_of_many_small_pieces_is_written_in_little_time() -> None:
    pod = MemoryPod(limits={"max_message_bytes": 1_000_000})
    async with pod.connect("writer") as author, pod.connect("anna") as anna:
        with anyio.fail_after(20):
            async with author.stream() as out:
                for _ in range(100_000):
                    await out.write("word ")
            assert len((await anext(anna)).text) == 500_000
