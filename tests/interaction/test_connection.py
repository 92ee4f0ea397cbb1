"""Sending, receiving and surviving, against the real gateway in memory and on a socket."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

import mcpp
from mcpp import filters
from mcpp.client.connection import Options
from mcpp.errors import ClosedError, TooLargeError, WrongParticipantError
from mcpp.session.resumption import Gap
from tests.interaction.conftest import QUICK, AnyPod, SocketPod

pytestmark = pytest.mark.anyio


async def texts(pod: mcpp.Pod, count: int) -> list[str]:
    """Return the texts of the next chats."""
    found: list[str] = []
    with anyio.fail_after(10):
        while len(found) < count:
            message = await anext(pod)
            if message.kind == "chat":
                found.append(message.text)
    return found


async def test_a_send_returns_its_echo_and_others_receive_it(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        echo = await alice.send("chat", {"text": "hello"}, to=["bob"])
        assert echo.sender == "alice"
        message = await anext(bob)
        assert message.envelope == echo
        assert not message.replayed


@pytest.mark.rule("P-13")
async def test_own_envelopes_are_delivered_only_with_own(harness: AnyPod) -> None:
    async with harness.connect("alice", own=True) as alice, harness.connect("bob") as bob:
        await alice.send("chat", {"text": "mine"})
        assert await texts(alice, 1) == ["mine"]
        await bob.send("chat", {"text": "bob's"})
        await alice.send("chat", {"text": "again"})
        assert await texts(bob, 2) == ["mine", "again"]


async def test_two_readers_of_one_pod_share_its_messages(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        received: list[str] = []

        async def read_one() -> None:
            received.append((await anext(bob)).text)

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read_one)
                tasks.start_soon(read_one)
                await anyio.wait_all_tasks_blocked()
                await alice.send("chat", {"text": "one"})
                await alice.send("chat", {"text": "two"})
        assert sorted(received) == ["one", "two"]


@pytest.mark.rule("P-04")
async def test_participants_and_contexts_are_known(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice:
        assert list(alice.participants) == ["alice"]
        async with harness.connect("bob") as bob:
            assert set(bob.participants) == {"alice", "bob"}
            joined = await anext(alice)
            assert joined.payload["event"] == "join"
            assert set(alice.participants) == {"alice", "bob"}
            async with bob.context("reasoning") as thinking:
                await thinking.send("reflection", {"thought": "…"})
            await anext(alice)
            assert alice.contexts[thinking.id].type == "reasoning"
        await anext(alice)
        assert list(alice.participants) == ["alice"]
    assert alice.name == "test"


async def test_a_refusal_raises_with_its_code(harness: AnyPod) -> None:
    harness.add("mute", [{"kind": "reflection"}])
    async with harness.connect("mute") as mute:
        with pytest.raises(mcpp.Refused) as caught:
            await mute.send("chat", {"text": "hello"})
        assert caught.value.code == "capability_violation"
        assert caught.value.details.attempted_kind == "chat"
        await mute.send("reflection", {"thought": "at least that"})


@pytest.mark.parametrize("limits", [{"burst": 2}])
async def test_a_cancelled_send_blocks_no_other(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice:
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(alice.send, "chat")
                await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            for _ in range(3):
                await alice.send("chat")


@pytest.mark.parametrize("limits", [{"messages_per_second": 100, "burst": 1}])
async def test_leaving_waits_as_long_as_the_rate_limits_require(
    harness: AnyPod, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mcpp.client.connection._LEAVE_SECONDS", 0.1)
    async with harness.connect("bob") as bob:
        async with harness.connect("alice") as alice:
            for number in range(40):
                await alice.send("chat", {"text": str(number)}, wait=False)
        assert await texts(bob, 40) == [str(number) for number in range(40)]
    assert not [record for record in caplog.records if record.name == "mcpp"]


async def test_envelopes_lost_by_an_exception_are_logged(
    harness: AnyPod, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        async with harness.connect("alice") as alice:
            for _ in range(1000):
                await alice.send("chat", wait=False)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert re.search(r"alice: \d+ envelopes may be lost", caplog.text)


@pytest.mark.rule("P-11")
async def test_a_new_filter_does_not_affect_earlier_messages(harness: AnyPod) -> None:
    options = replace(QUICK, buffer_messages=4)
    async with harness.connect("alice") as alice, harness.connect("bob", options=options) as bob:
        for number in range(20):
            await alice.send("chat", {"text": str(number)})
        await bob.set_filter({"kind": "reflection"})
        assert await texts(bob, 20) == [str(number) for number in range(20)]


@pytest.mark.parametrize("limits", [{"messages_per_second": 50, "burst": 2}])
@pytest.mark.rule("P-06")
async def test_a_rate_limit_is_waited_out(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        async with anyio.create_task_group() as tasks:
            for number in range(12):
                tasks.start_soon(alice.send, "chat", {"text": str(number)})
        assert sorted(await texts(bob, 12), key=int) == [str(number) for number in range(12)]


@pytest.mark.parametrize("limits", [{"messages_per_second": 200, "burst": 20}])
@pytest.mark.rule("P-06")
async def test_a_rate_limit_does_not_change_the_order(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        for number in range(60):
            await alice.send("chat", {"text": str(number)}, wait=False)
        assert await texts(bob, 60) == [str(number) for number in range(60)]


@pytest.mark.parametrize("limits", [{"messages_per_second": 4, "burst": 1}])
@pytest.mark.rule("P-06")
async def test_a_send_cancelled_during_a_rate_limit_is_never_sent(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        await alice.send("chat", {"text": "one"})
        with anyio.move_on_after(0.05):
            await alice.send("chat", {"text": "given up"})
        await alice.send("chat", {"text": "two"})
        assert await texts(bob, 2) == ["one", "two"]


@pytest.mark.parametrize("limits", [{"messages_per_second": 0.001, "burst": 1}])
async def test_a_rate_limit_that_lasts_too_long_raises(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice:
        await alice.send("chat", {"text": "one"})
        with pytest.raises(mcpp.Refused) as caught:
            await alice.send("chat", {"text": "two"})
        assert caught.value.code == "rate_limited"
        with pytest.raises(mcpp.Refused):
            await alice.send("chat", {"text": "three"}, rate_limit_seconds=0)


@pytest.mark.rule("P-05", "P-08")
async def test_a_lost_connection_loses_nothing_and_repeats_nothing(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        for number in range(30):
            await alice.send("chat", {"text": str(number)})
            if number % 7 == 3:
                harness.cut("bob")
            if number % 11 == 5:
                harness.cut("alice")
        assert await texts(bob, 30) == [str(number) for number in range(30)]


@pytest.mark.rule("P-05")
async def test_an_envelope_sent_while_disconnected_arrives_once(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        await alice.send("chat", {"text": "0"})
        for number in range(1, 20):
            await alice.send("chat", {"text": str(number)}, wait=False)
            harness.cut("alice")
        assert await texts(bob, 20) == [str(number) for number in range(20)]


@pytest.mark.rule("P-10")
async def test_a_restart_of_the_gateway_is_a_gap(harness: AnyPod) -> None:
    gaps: list[Gap] = []
    async with (
        harness.connect("alice") as alice,
        harness.connect("bob", on_gap=gaps.append) as bob,
    ):
        await alice.send("chat", {"text": "before"})
        assert await texts(bob, 1) == ["before"]
        harness.restart()
        await alice.send("chat", {"text": "after"})
        assert await texts(bob, 1) == ["after"]
        assert gaps == [Gap(lost_log=True)]


async def test_a_gap_without_an_on_gap_function_is_logged(
    harness: AnyPod, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        await alice.send("chat", {"text": "before"})
        assert await texts(bob, 1) == ["before"]
        harness.restart()
        await alice.send("chat", {"text": "after"})
        assert await texts(bob, 1) == ["after"]
    (warning,) = [one.getMessage() for one in caplog.records if "missed" in one.getMessage()]
    assert warning == "missed envelopes in pod 'test': the gateway has lost its log"


@pytest.mark.rule("P-08")
async def test_an_id_that_was_seen_before_a_restart_is_dropped(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        echo = await alice.send("chat", {"text": "once"})
        assert await texts(bob, 1) == ["once"]
        harness.restart()
        await alice._connection.send(echo)  # as a sender does that had no echo
        await alice.send("chat", {"text": "then"})
        assert await texts(bob, 1) == ["then"]


async def test_history_is_marked_as_replayed(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice:
        for number in range(3):
            await alice.send("chat", {"text": str(number)})
        async with harness.connect("bob", last=2, filter=filters.kind("chat")) as bob:
            await alice.send("chat", {"text": "live"})
            seen = [await anext(bob) for _ in range(3)]
            assert [message.text for message in seen] == ["1", "2", "live"]
            assert [message.replayed for message in seen] == [True, True, False]


@pytest.mark.rule("P-03")
async def test_history_is_marked_even_if_it_exceeds_the_buffer(
    harness: AnyPod,
) -> None:
    small = Options(buffer_messages=8, backoff=lambda attempt: 0.0)
    async with harness.connect("alice") as alice:
        for number in range(50):
            await alice.send("chat", {"text": str(number)})
        wanted = filters.kind("chat")
        async with harness.connect("bob", last=50, filter=wanted, options=small) as bob:
            await alice.send("chat", {"text": "live"})
            seen = [await anext(bob) for _ in range(51)]
    assert [message.text for message in seen] == [*map(str, range(50)), "live"]
    assert [message.replayed for message in seen] == [True] * 50 + [False]


async def test_after_resumes_from_an_earlier_position(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice:
        async with harness.connect("bob") as bob:
            await alice.send("chat", {"text": "seen"})
            assert await texts(bob, 1) == ["seen"]
            position = bob.position
        await alice.send("chat", {"text": "missed"})
        async with harness.connect("bob", after=position) as bob:
            message = await anext(bob)
            while message.kind != "chat":
                message = await anext(bob)
            assert message.text == "missed"
            assert not message.replayed


async def test_a_filter_is_in_force_when_setting_it_returns(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        await alice.send("chat", {"text": "before"})
        await bob.set_filter(filters.kind("reflection"))
        await alice.send("chat", {"text": "hidden"})
        await alice.send("reflection", {"thought": "shown"})
        assert [(await anext(bob)).text for _ in range(2)] == ["before", "shown"]


@pytest.mark.rule("P-09")
async def test_a_filter_survives_a_lost_connection(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        await bob.set_filter(filters.kind("reflection"))
        harness.cut("bob")
        await alice.send("chat", {"text": "hidden"})
        await alice.send("reflection", {"thought": "shown"})
        with anyio.fail_after(5):
            message = await anext(bob)
            while message.kind.startswith("system/"):
                message = await anext(bob)
        assert message.text == "shown"


@asynccontextmanager
async def flooded(
    harness: AnyPod, *, messages: int, buffer: int
) -> AsyncIterator[tuple[mcpp.Pod, mcpp.Pod]]:
    """Connect @alice, which has sent numbered chats, and @bob, whose buffer they fill."""
    small = Options(buffer_messages=buffer, backoff=lambda attempt: 0.0)
    async with harness.connect("alice") as alice, harness.connect("bob", options=small) as bob:
        for number in range(messages):
            await alice.send("chat", {"text": str(number)})
        yield alice, bob


@pytest.mark.rule("P-11")
async def test_a_full_buffer_reconnects_without_loss(harness: AnyPod) -> None:
    async with flooded(harness, messages=100, buffer=8) as (alice, bob):
        assert await texts(bob, 100) == [str(number) for number in range(100)]
        # The new connection replaced the old one: no leave and join were broadcast.
        await bob.send("done")
        said = await anext(alice)
        while said.kind == "system/presence" and said.payload["event"] == "join":
            said = await anext(alice)
        assert said.kind == "done"


@pytest.mark.rule("P-11")
async def test_sending_works_with_a_full_buffer(harness: AnyPod) -> None:
    async with flooded(harness, messages=50, buffer=4) as (_, bob):
        with anyio.fail_after(5):
            await bob.send("chat", {"text": "still here"})


@pytest.mark.rule("P-12")
async def test_a_newer_connection_ends_the_older_for_good(harness: AnyPod) -> None:
    async with harness.connect("alice") as older, harness.connect("alice") as newer:
        with anyio.fail_after(5), pytest.raises(ClosedError) as caught:
            await anext(older)
        assert caught.value.code == 4500
        with pytest.raises(ClosedError):
            await older.send("chat", {"text": "too late"})
        await newer.send("chat", {"text": "here"})


@pytest.mark.parametrize("limits", [{"max_message_bytes": 2000}])
@pytest.mark.rule("P-07")
async def test_a_too_large_envelope_is_an_error_before_it_is_sent(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice:
        with pytest.raises(TooLargeError) as caught:
            await alice.send("chat", {"text": "x" * 3000})
        assert caught.value.limit_bytes == 2000
        await alice.send("chat", {"text": "x" * 100})


async def test_an_exception_of_the_block_is_raised_as_it_is(harness: AnyPod) -> None:
    with pytest.raises(ZeroDivisionError):
        async with harness.connect("alice"):
            raise ZeroDivisionError


async def test_after_the_block_everything_raises(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice:
        pass
    with pytest.raises(ClosedError):
        await alice.send("chat", {"text": "?"})
    with pytest.raises(ClosedError):
        await anext(alice)


@pytest.mark.rule("P-02")
async def test_the_token_of_another_participant_is_an_error(sockets: SocketPod) -> None:
    sockets.add("alice")
    with pytest.raises(WrongParticipantError) as caught:
        async with mcpp.connect(sockets.url, token=sockets.token("alice"), name="bob"):
            pass
    assert (caught.value.expected, caught.value.actual) == ("bob", "alice")


async def test_what_was_sent_without_waiting_arrives_before_the_block_ends(
    harness: AnyPod,
) -> None:
    async with harness.connect("bob") as bob:
        async with harness.connect("alice") as alice:
            for number in range(10):
                await alice.send("chat", {"text": str(number)}, wait=False)
        assert await texts(bob, 10) == [str(number) for number in range(10)]


async def test_a_cancelled_send_that_was_never_written_is_not_sent(harness: AnyPod) -> None:
    async with harness.connect("alice") as alice, harness.connect("bob") as bob:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await alice.send("chat", {"text": "never"})
        await alice.send("chat", {"text": "ever"})
        assert await texts(bob, 1) == ["ever"]


def options(**changes: Any) -> Options:
    return Options(**{"backoff": QUICK.backoff} | changes)


async def test_a_reader_that_is_cancelled_with_its_connection_ends_quietly(
    harness: AnyPod,
) -> None:
    async def read(pod: mcpp.Pod) -> None:
        async for _ in pod:
            pass

    async with anyio.create_task_group() as tasks, harness.connect("alice") as alice:
        tasks.start_soon(read, alice)
        for _ in range(3):
            await alice.send("chat")
        tasks.cancel_scope.cancel()
