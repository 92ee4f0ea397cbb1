"""`pod/history` over sockets, on a log in memory and in files, over a restart."""

import asyncio
import time
from itertools import count
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from mcpp_gateway.core.history.erasing import Erasure
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.log_tools.erase import erase_entries
from tests.gateway.harness import text
from tests.gateway.sockets import config_text, joined, receive_until, running

pytestmark = pytest.mark.anyio

FREE: dict[str, Any] = {"messages_per_second": 0, "context_messages_per_second": 0}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["memory", "file"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found = config_text(None, **FREE)
    if request.param == "file":
        found += f'\n[log]\nkind = "file"\npath = "{tmp_path}"\n'
    return found


async def say(client: ClientConnection, *envelopes: bytes) -> None:
    for each in envelopes:
        await client.send(each.decode())


async def ask_once(client: ClientConnection, id: str, **query: Any) -> Any:
    """Return one page, which may end early: if memory is cleaned up while it is read (H-03)."""
    await client.send(text(id, "bob", "pod/history", query).decode())
    return (await receive_until(client, id))[-1]["payload"]


async def ask(client: ClientConnection, id: str, limit: int = 100, **query: Any) -> Any:
    """Return a page with as many entries as there are, up to `limit`."""
    page = await ask_once(client, id, limit=limit, **query)
    while "next" in page and (left := limit - len(page["entries"])) > 0:
        query["cursor"] = page["next"]
        rest = await ask_once(client, f"{id}.{left}", limit=left, **query)
        page = {**rest, "entries": page["entries"] + rest["entries"]}
        id += "."
    return page


async def ask_all(client: ClientConnection, id: str, **query: Any) -> list[str]:
    """Return the ids of all pages."""
    found: list[str] = []
    cursor: dict[str, Any] = {}
    for number in count():
        page = await ask(client, f"{id}-{number}", **query, **cursor)
        found += ids(page)
        if "next" not in page:
            break
        cursor = {"cursor": page["next"]}
    return found


def ids(payload: Any) -> list[str]:
    return [each["envelope"]["id"] for each in payload["entries"]]


@pytest.mark.rule("H-06", "F-19")
@pytest.mark.parametrize("kind", ["memory", "file"])
async def test_a_participant_reads_back_nothing_that_it_may_not_hear(
    kind: str, tmp_path: Path
) -> None:
    hears = 'hears = { not = { type = "reasoning" } }'
    config = config_text({"alice": "", "bob": hears}, context_idle_seconds=0.05, **FREE)
    config += f'\n[log]\nkind = "{kind}"\npath = "{tmp_path}"\n'
    secret = {"id": "secret", "type": "reasoning"}
    async with (
        running(config) as gateway,
        joined(gateway, "alice") as alice,
        joined(gateway, "bob") as bob,
    ):
        await say(
            alice,
            text("m0", "alice", payload={"text": "the plan"}),
            text("m1", "alice", payload={"text": "the hidden plan"}, context=secret),
            text("m2", "alice", payload={"text": "plan for bob"}, context=secret, to=["bob"]),
        )
        await receive_until(bob, "m2")
        expired = await alice.recv()
        while b"expired" not in (expired if isinstance(expired, bytes) else expired.encode()):
            expired = await alice.recv()
        for number, query in enumerate(({}, {"text": "plan"}, {"context": "secret"})):
            found = await ask_all(bob, f"q{number}", order="oldest", **query)
            heard = [id for id in found if id.startswith("m")]
            assert heard == (["m2"] if "context" in query else ["m0", "m2"])
        page = await ask(bob, "last", limit=500)
        kinds = [each["envelope"]["kind"] for each in page["entries"]]
        assert "system/context" not in kinds


@pytest.mark.rule("H-01", "H-03", "H-04")
async def test_a_participant_reads_back_what_it_missed(config: str) -> None:
    task = {"id": "task", "type": "task"}
    step = {"id": "step", "type": "reasoning", "parent": "task"}
    async with running(config) as gateway, joined(gateway, "alice") as alice:
        await say(
            alice,
            text("m0", "alice", payload={"text": "the refund"}),
            text("m1", "alice", payload={"text": "a plan"}, context=task),
            text("m2", "alice", payload={"text": "refund it"}, context=step),
            text("m3", "alice", payload={"text": "done"}),
        )
        await receive_until(alice, "m3")
        async with joined(gateway, "bob") as bob:
            chats: dict[str, Any] = {"filter": {"kind": "chat"}}
            assert ids(await ask(bob, "q1", **chats)) == ["m3", "m2", "m1", "m0"]
            assert ids(await ask(bob, "q2", text="refund", order="oldest")) == ["m0", "m2"]
            assert ids(await ask(bob, "q3", context="task")) == ["m2", "m1"]
            assert ids(await ask(bob, "q4", context="task", text="refund")) == ["m2"]
            assert ids(await ask(bob, "q5", after="m0", before="m3", **chats)) == ["m2", "m1"]
            page = await ask(bob, "q6", limit=3, **chats)
            assert ids(page) == ["m3", "m2", "m1"]
            assert ids(await ask(bob, "q7", cursor=page["next"], **chats)) == ["m0"]
            times = [each["time"] for each in page["entries"]]
            assert times == sorted(times, reverse=True)
            later = await ask(bob, "q8", after=times[0], **chats)
            assert ids(later) == []
            error = await ask(bob, "q9", after="unknown")
            assert (error["error"], error["member"]) == ("invalid_history", "after")


@pytest.mark.rule("H-03", "H-08")
async def test_a_cursor_outlives_a_restart(tmp_path: Path) -> None:
    config = config_text(None, **FREE) + f'\n[log]\nkind = "file"\npath = "{tmp_path}"\n'
    chats: dict[str, Any] = {"filter": {"kind": "chat"}, "limit": 2}
    async with running(config) as gateway, joined(gateway, "bob") as bob:
        await say(bob, *(text(f"m{number}", "bob") for number in range(5)))
        await receive_until(bob, "m4")
        page = await ask(bob, "q1", **chats)
        assert ids(page) == ["m4", "m3"]
    (tmp_path / "demo" / "index.sqlite").unlink()
    async with running(config) as gateway, joined(gateway, "bob") as bob:
        await say(bob, text("m5", "bob"))
        page = await ask(bob, "q2", **chats, cursor=page["next"])
        assert ids(page) == ["m2", "m1"]
        assert ids(await ask(bob, "q3", **chats, cursor=page["next"])) == ["m0"]


@pytest.mark.rule("H-09")
async def test_many_queries_are_answered_in_their_order(config: str) -> None:
    async with running(config) as gateway, joined(gateway, "bob") as bob:
        await say(bob, *(text(f"m{number}", "bob", payload="x" * 500) for number in range(300)))
        await receive_until(bob, "m299")
        await say(bob, *(text(f"q{number}", "bob", "pod/history", {}) for number in range(5)))
        await say(bob, text("last", "bob"))
        answers: list[str] = []
        while len(answers) < 5:
            for envelope in await receive_until(bob, f"q{len(answers)}"):
                if envelope["kind"] == "system/history":
                    answers.append(envelope["correlation_id"])
                    assert envelope["payload"]["entries"][0]["position"] >= 300
        assert answers == [f"q{number}" for number in range(5)]


async def read_elsewhere(gateway: Gateway, client: ClientConnection) -> "Popen[bytes]":
    """Ask until pages are read in another process, and return that."""
    assert gateway.logs is not None
    helper = gateway.logs._history.helper
    for number in count():
        await ask(client, f"try-{number}")
        if helper.ready:
            assert helper.process is not None
            return helper.process
    raise AssertionError


@pytest.mark.rule("H-03", "H-08", "H-09")
async def test_pages_are_read_in_another_process_and_without_it(tmp_path: Path) -> None:
    log = f'\n[log]\nkind = "file"\npath = "{tmp_path}"\nsegment_bytes = 1048576\n'
    async with running(config_text(None, **FREE) + log) as gateway, joined(gateway, "bob") as bob:
        process = await read_elsewhere(gateway, bob)
        for round in range(4):  # segments are rolled meanwhile, and the index grows
            first = round * 100
            await say(
                bob,
                *(
                    text(f"m{first + n}", "bob", payload=f"word{n} {'x' * 5000}")
                    for n in range(100)
                ),
            )
            await receive_until(bob, f"m{first + 99}")
            for ended in (False, round == 2):
                if ended:
                    process.kill()
                found = await ask_all(bob, f"q{round}-{ended}", text="word7")
                assert found == [f"m{each * 100 + 7}" for each in range(round, -1, -1)]
            later = await ask_all(bob, f"r{round}", after=f"m{first + 97}", order="oldest")
            assert later == [f"m{first + 98}", f"m{first + 99}"]
            error = await ask(bob, f"e{round}", before="unknown")
            assert error["member"] == "before"
    assert process.poll() is not None


@pytest.mark.rule("H-10", "L-21", "G-27")
async def test_after_an_erasure_the_same_log_goes_on_with_tombstones(tmp_path: Path) -> None:
    config = config_text(None, **FREE) + f'\n[log]\nkind = "file"\npath = "{tmp_path}"\n'
    secret = text("m1", "bob", payload={"text": "the secret"})
    async with running(config) as gateway, joined(gateway, "bob") as bob:
        await say(bob, text("m0", "bob"), secret, text("m2", "bob"))
        epoch = (await receive_until(bob, "m2"))[0]["payload"]["pod"]["epoch"]
    assert erase_entries(tmp_path / "demo", Erasure(participant="bob")) == 3
    resume = {"after": "m0"}
    async with running(config) as gateway, joined(gateway, "bob", query=resume) as bob:
        await say(bob, secret)
        welcome, *received, last = await receive_until(bob, "m1")
        assert (welcome["payload"]["pod"]["epoch"], welcome["payload"]["resumed"]) == (epoch, True)
        assert (last["id"], last["kind"], last["payload"]) == ("m1", "tombstone", None)
        received += await receive_until(bob, "m1")
        kinds = [each["kind"] for each in received]
        assert kinds == ["tombstone", "system/erased", "tombstone"], "the repetition comes last"
        assert ids(await ask(bob, "q1", text="secret")) == []
        page = await ask(bob, "q2", filter={"from": "bob"})
        assert ids(page) == ["m2", "m1", "m0"]
        assert all(each["erased"] for each in page["entries"])


@pytest.mark.rule("H-09")
async def test_expensive_queries_of_others_do_not_hold_up_an_echo(config: str) -> None:
    costly = {"filter": {"not": {"kind": "*"}}, "limit": 500}
    async with (
        running(config) as gateway,
        joined(gateway, "alice") as alice,
        joined(gateway, "bob") as bob,
    ):
        await say(bob, *(text(f"m{n}", "bob", payload=f"{n} " * 200) for n in range(3000)))
        await receive_until(alice, "m2999")
        stop = asyncio.Event()

        async def attack() -> int:
            for number in count():
                await ask_once(
                    bob, f"q{number}", **(costly if number % 2 else {"text": '"7 7" 1*'})
                )
                if stop.is_set():
                    return number
            raise AssertionError

        attacking = asyncio.create_task(attack())
        seconds: list[float] = []
        for number in range(60):
            began = time.monotonic()
            await say(alice, text(f"e{number}", "alice"))
            await receive_until(alice, f"e{number}")
            seconds.append(time.monotonic() - began)
        stop.set()
        assert await attacking > 0
        assert sorted(seconds)[30] < 0.1
