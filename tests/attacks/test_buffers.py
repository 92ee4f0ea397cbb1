"""Envelopes of a megabyte, in every disguise, against what clients keep of them."""

import anyio
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpp
from mcpp import decode, encode, new_envelope
from mcpp.buffers import BoundedQueue
from mcpp.client.connection import Options
from mcpp.payloads import ContextInfo, ParticipantInfo
from mcpp.protocol.contexts import ContextTracker
from mcpp.session.roster import MAX_PARTICIPANTS, MAX_ROSTER_BYTES, Roster
from mcpp.testing import MemoryPod
from mcpp_agents.chat.transcript import Transcript
from tests.attacks.conftest import resident_bytes

MEGABYTE = 1_000_000
UNLIMITED = {"messages_per_second": 0, "context_messages_per_second": 0}
SHORT_AND_LONG = [150, pytest.param(816, marks=pytest.mark.torture)]


def disguises() -> list[bytes]:
    """Return texts of a megabyte whose payload is small, or that are long in another way."""
    plain = encode(new_envelope("chat", {"text": "hi"}, sender="mallory"))
    head, tail = plain[:-1], b"}"
    return [
        encode(new_envelope("chat", {"text": "x" * MEGABYTE}, sender="mallory")),
        head + b',"unknown":"' + b"x" * MEGABYTE + b'"' + tail,
        head + b" " * MEGABYTE + tail,
        head.replace(b'"payload":', b'"payload":' + b" " * MEGABYTE) + tail,
        head + b',"context":{"id":"c","unknown":"' + b"x" * MEGABYTE + b'"}' + tail,
    ]


@pytest.mark.rule("P-40")
@pytest.mark.parametrize("text", disguises())
def test_an_envelope_counts_with_its_whole_text(text: bytes) -> None:
    assert MEGABYTE < decode(text).size_bytes < 1.01 * len(text)


@pytest.mark.rule("P-40")
@given(st.lists(st.tuples(st.integers(0, 120), st.booleans()), max_size=60))
def test_a_queue_never_holds_more_than_its_bounds_or_one_item(
    steps: list[tuple[int, bool]],
) -> None:
    queue = BoundedQueue[int](max_items=5, max_bytes=100)
    kept: list[int] = []
    for size, drops_oldest in steps:
        if drops_oldest:
            dropped = queue.push(size, size)
            kept = [*kept[dropped:], size]
        elif queue.put(size, size):
            kept.append(size)
        assert list(queue) == kept
        assert queue.size_bytes == sum(kept)
        assert len(kept) <= 5
        assert sum(kept) <= 100 or len(kept) == 1


@pytest.mark.anyio
@pytest.mark.rule("P-40")
@pytest.mark.parametrize("count", SHORT_AND_LONG)
async def test_an_agent_with_a_busy_handler_stays_small(count: int) -> None:
    limits = {"max_message_bytes": 2 * MEGABYTE, "history_bytes": 2 * MEGABYTE}
    pod = MemoryPod(limits=UNLIMITED | limits)
    agent = mcpp.Participant("busy")
    started = anyio.Event()

    @agent.on("chat")
    async def work(message: mcpp.Message) -> None:
        started.set()
        await anyio.sleep_forever()

    @agent.tool
    async def ping() -> str:
        return "pong"

    before = resident_bytes()
    async with pod.run(agent), pod.connect("mallory") as mallory:
        disguised = decode(disguises()[1])
        for _ in range(count):
            envelope = disguised.__replace__(id=mcpp.new_envelope("x", sender="m").id)
            await mallory._connection.send(envelope)
        with anyio.fail_after(20):
            await started.wait()
            assert (await mallory.call("busy", "ping")).text == "pong"
        grown = resident_bytes() - before
    assert grown < 200 * MEGABYTE, f"{grown / MEGABYTE:.0f} MB"


@pytest.mark.anyio
@pytest.mark.rule("P-11", "P-40")
async def test_a_reader_behind_by_more_bytes_than_its_buffer_still_gets_everything() -> None:
    pod = MemoryPod(limits=UNLIMITED)
    options = Options(buffer_bytes=300_000, backoff=lambda attempt: 0.0)
    async with pod.connect("slow", options=options) as slow, pod.connect("alice") as alice:
        sent = [
            (await alice.send("chat", {"text": "x" * 100_000, "number": n})).id for n in range(20)
        ]
        inbox = slow._session._resumption._inbox
        assert inbox.size_bytes <= 400_000
        with anyio.fail_after(20):
            received = await _chats(slow, len(sent))
        assert received == sent


async def _chats(pod: mcpp.Pod, count: int) -> list[str]:
    received: list[str] = []
    async for message in pod:
        if message.kind == "chat":
            received.append(message.id)
            if len(received) == count:
                break
    return received


@pytest.mark.anyio
@pytest.mark.rule("P-40")
async def test_sending_waits_while_too_many_bytes_are_not_echoed() -> None:
    pod = MemoryPod(limits=UNLIMITED)
    options = Options(unechoed_bytes=250_000, backoff=lambda attempt: 0.0)
    async with pod.connect("alice", options=options) as alice:
        outgoing = alice._session.outgoing
        most = 0

        async def send() -> None:
            nonlocal most
            await alice.send("chat", {"text": "x" * 100_000}, wait=False)
            most = max(most, outgoing.size_bytes)

        async with anyio.create_task_group() as tasks:
            for _ in range(50):
                tasks.start_soon(send)
        assert most <= 400_000
    assert outgoing.size_bytes == 0


@pytest.mark.rule("P-40")
def test_a_transcript_keeps_megabytes_not_thousands_of_messages() -> None:
    transcript = Transcript("alice")
    template = decode(disguises()[1])
    before = resident_bytes()
    for number in range(100):
        transcript.add(decode(encode(template.__replace__(id=f"n{number}"))))
    assert resident_bytes() - before < 60 * MEGABYTE
    assert len(transcript.rows()) >= 8


@pytest.mark.rule("P-42")
def test_contexts_beyond_the_bound_are_not_learned() -> None:
    tracker = ContextTracker(max_contexts=3)
    for number in range(5):
        context = mcpp.new_context("task", id=f"c{number}")
        lineage = tracker.observe(new_envelope("chat", {}, sender="m", context=context))
        assert lineage is not None
        assert lineage.id == f"c{number}"
    assert list(tracker.contexts) == ["c0", "c1", "c2"]
    tracker.reset(ContextInfo(id=f"w{number}") for number in range(9))
    assert len(tracker.contexts) == 3


@pytest.mark.rule("P-42")
@pytest.mark.parametrize("size", [100, 1_000_000])
def test_a_roster_does_not_grow_with_what_a_gateway_announces(size: int) -> None:
    roster = Roster()
    for number in range(MAX_PARTICIPANTS + 100 if size == 100 else 100):
        roster.add(ParticipantInfo(id=f"p{number}"), size)
    assert len(roster.participants) == min(MAX_PARTICIPANTS, MAX_ROSTER_BYTES // size)
    roster.add(ParticipantInfo(id="p0"), size)  # joined again
    roster.remove("p0")
    roster.add(ParticipantInfo(id="late"), size)
    assert "late" in roster.participants
    everyone = [ParticipantInfo(id=f"w{number}") for number in range(2 * MAX_PARTICIPANTS)]
    roster.reset(msgspec.Raw(msgspec.json.encode(everyone)), is_complete=True)
    assert len(roster.participants) == MAX_PARTICIPANTS
    roster.reset(msgspec.Raw(b'[{"id": 7}]'), is_complete=True)
    roster.add(ParticipantInfo(id="after"), size)
    assert list(roster.participants) == ["after"]
