"""What a restart keeps, shown in one process: positions, epoch, presence, contexts, window."""

import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

import mcpp
from mcpp_gateway import config
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.log_store import LogStoreError
from mcpp_gateway.storage.segment_log import SegmentLog
from tests.gateway.sockets import config_text, joined, receive, receive_until, running, token

pytestmark = pytest.mark.anyio

SMALL = "segment_bytes = 1048576\nreserve_bytes = 1048576\n"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class DurableGateway:
    """A gateway with a file log, run again and again on the same folder."""

    def __init__(self, folder: Path, log: str = "", **limits: float) -> None:
        self.folder = folder
        free = {"messages_per_second": 0, "context_messages_per_second": 0}
        section = f'\n[log]\nkind = "file"\npath = "{folder}"\n{SMALL}{log}'
        self.text = config_text(None, gateway=None, **{**free, **limits}) + section

    @asynccontextmanager
    async def join(
        self, participant: str, **query: str
    ) -> AsyncIterator[tuple[ClientConnection, dict[str, Any]]]:
        """Run the gateway, join, and yield the connection with the welcome's payload."""
        async with (
            running(self.text) as gateway,
            joined(gateway, participant, query=query) as client,
        ):
            yield client, (await receive(client))["payload"]

    def run(self) -> AbstractAsyncContextManager[Gateway]:
        return running(self.text)

    async def stop_while_joined(self, participant: str) -> None:
        """Run the gateway and stop it while a participant is connected."""
        async with AsyncExitStack() as clients, self.run() as gateway:
            client = await clients.enter_async_context(joined(gateway, participant))
            await receive(client)
            await say(client, f"{participant}-was-here", sender=participant)


async def say(
    client: ClientConnection, id: str, text: str = "hello", sender: str = "alice", **members: Any
) -> Any:
    """Send a chat and return its echo."""
    envelope = mcpp.new_envelope("chat", {"text": text}, sender=sender, id=id, **members)
    await client.send(mcpp.encode(envelope).decode())
    return (await receive_until(client, id))[-1]


async def read(client: ClientConnection, count: int) -> list[Any]:
    return [await receive(client) for _ in range(count)]


@pytest.mark.rule("G-51", "G-16")
async def test_a_client_resumes_across_a_restart(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    async with durable.join("alice") as (alice, before):
        for id in ("m0", "m1", "m2"):
            await say(alice, id)
    async with durable.join("alice", after="m0") as (alice, after):
        assert after["resumed"]
        assert after["pod"] == before["pod"]
        assert after["pod"]["log"] == "file"
        assert [each["id"] for each in await read(alice, after["replayed"])] == ["m1", "m2"]
        assert (await say(alice, "m3"))["id"] == "m3"


@pytest.mark.rule("G-51")
async def test_a_participant_that_rejoins_in_time_is_not_announced(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    await durable.stop_while_joined("alice")
    async with durable.run() as gateway, joined(gateway, "bob") as bob:
        present = (await receive(bob))["payload"]["participants"]
        assert [each["id"] for each in present] == ["alice", "bob"]
        async with joined(gateway, "alice") as alice:
            await receive(alice)
            await say(alice, "m1")
            assert [each["id"] for each in await receive_until(bob, "m1")] == ["m1"]


@pytest.mark.rule("G-51")
async def test_a_participant_that_does_not_rejoin_leaves(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path, "rejoin_seconds = 0.0")
    await durable.stop_while_joined("alice")
    async with durable.join("bob") as (bob, _):
        left = await receive(bob)
        assert left["payload"]["event"] == "leave"
        assert left["payload"]["participant"]["id"] == "alice"


@pytest.mark.rule("G-29")
async def test_a_repeated_id_is_recognised_after_a_restart(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    async with durable.join("alice") as (alice, _):
        original = await say(alice, "m0", "first")
        # Enough for a new segment, whose state holds the window without the texts.
        for number in range(30):
            await say(alice, f"pad{number}", "x" * 100_000)
    assert len(list((tmp_path / "demo").glob("*.seg"))) > 1
    async with durable.join("alice") as (alice, _):
        assert await say(alice, "m0", "second") == original


@pytest.mark.rule("G-29", "G-56")
async def test_retention_deletes_texts_but_keeps_the_window(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path, "[log.retention]\nmax_bytes = 1048576")
    async with durable.run() as gateway, joined(gateway, "alice") as alice:
        await receive(alice)
        await say(alice, "m0", "first")
        for number in range(40):
            await say(alice, f"pad{number}", "x" * 100_000)
            assert gateway.logs is not None
            gateway.logs.check()
        await say(alice, "end")
    async with durable.join("alice", after="m0") as (alice, welcome):
        assert not welcome["resumed"]
        assert (await say(alice, "m0", "second"))["payload"] == {"text": "second"}
        assert gateway.pods["demo"].journal.start > 1


@pytest.mark.rule("G-12")
async def test_an_id_outside_the_window_is_found_with_and_without_the_index(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path, history_messages=5)
    async with durable.join("alice") as (alice, _):
        for number in range(40):
            await say(alice, f"m{number}")
    for with_index in (True, False):
        if not with_index:
            for file in (tmp_path / "demo").glob("*.sqlite*"):
                file.unlink()
        async with durable.join("alice", after="m3") as (alice, welcome):
            assert welcome["resumed"]
            assert welcome["replayed"] == 36
            ids = [each["id"] for each in await read(alice, 36)]
            assert ids == [f"m{number}" for number in range(4, 40)]


@pytest.mark.rule("G-51")
async def test_contexts_survive_a_restart(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    root = mcpp.new_context("task", id="root")
    async with durable.join("alice") as (alice, _):
        await say(alice, "m0", context=root)
        await say(alice, "m1", context=mcpp.new_context("step", id="child", parent="root"))
    async with durable.join("bob") as (_, welcome):
        assert {each["id"]: each for each in welcome["contexts"]} == {
            "root": {"id": "root", "type": "task", "creator": "alice", "messages": 1},
            "child": {
                "id": "child",
                "type": "step",
                "parent": "root",
                "creator": "alice",
                "messages": 1,
            },
        }


async def test_two_gateways_cannot_use_one_folder(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    async with durable.run():
        with pytest.raises(LogStoreError, match="another gateway uses"):
            async with durable.run():
                pass


async def test_a_damaged_log_is_not_started_and_named_in_one_line(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    async with durable.join("alice") as (alice, _):
        for number in range(10):
            await say(alice, f"m{number}")
    (segment,) = (tmp_path / "demo").glob("*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(b'"m5"')] ^= 1
    segment.write_bytes(data)
    with pytest.raises(LogStoreError, match=r"'demo' is damaged.*mcpp log verify") as caught:
        async with durable.run():
            pass
    assert "\n" not in str(caught.value)


@pytest.mark.rule("G-56")
async def test_reserved_space_does_not_count_as_history(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path, "[log.retention]\nmax_bytes = 2097152")
    async with durable.run() as gateway, joined(gateway, "alice") as alice:
        await receive(alice)
        for number in range(100):
            await say(alice, f"m{number}", "x" * 10_000)
        assert gateway.logs is not None
        gateway.logs.check()
        await say(alice, "end")
        assert gateway.logs.disk_bytes > 2097152
    async with durable.join("alice", after="m0") as (_, welcome):
        assert welcome["resumed"]


async def test_one_full_segment_is_followed_by_one_new_segment(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    async with durable.join("alice") as (alice, _):
        for number in range(12):
            await say(alice, f"m{number}", "x" * 100_000)
        for number in range(5):
            await say(alice, f"after{number}")
    assert len(list((tmp_path / "demo").glob("*.seg"))) == 2


@pytest.mark.rule("G-27")
async def test_a_repetition_of_a_damaged_envelope_is_answered(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    async with durable.join("alice") as (alice, _):
        for number in range(12):
            await say(alice, f"m{number}", "x" * 100_000)
        await say(alice, "end")
    oldest = min((tmp_path / "demo").glob("*.seg"))
    data = bytearray(oldest.read_bytes())
    data[data.index(b'"m5"')] ^= 1
    oldest.write_bytes(data)
    async with durable.join("alice") as (alice, _):
        assert (await say(alice, "m5", "again"))["payload"] == {"text": "again"}
        assert (await say(alice, "new"))["id"] == "new"


@pytest.mark.rule("G-51")
async def test_a_clock_that_was_set_back_makes_nobody_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable = DurableGateway(tmp_path)
    await durable.stop_while_joined("alice")
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now - 3600)
    async with durable.join("bob") as (_, welcome):
        assert [each["id"] for each in welcome["participants"]] == ["alice", "bob"]
    async with durable.run() as gateway:
        gateway.hub.perform_all(gateway.pods["demo"].tick(gateway.hub.clock() + 5))
        assert "alice" in gateway.pods["demo"].participants


async def test_a_log_folder_that_is_deleted_ends_the_gateway(tmp_path: Path) -> None:
    failures: list[BaseException] = []
    async with DurableGateway(tmp_path).run() as gateway:
        assert gateway.logs is not None
        gateway.logs._on_failure = failures.append
        (tmp_path / ".lock").unlink()
        gateway.logs.check()
    assert "was deleted" in str(failures[0])


async def test_a_reload_that_cannot_open_a_log_changes_nothing(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    async with durable.run() as gateway:
        before = gateway.config
        (tmp_path / "other").write_text("not a folder")
        more = f"""\n[pods.other.participants.zoe]\ntoken = "{token("zoe")}"\n"""
        changed = durable.text.replace(token("bob"), token("new-bob")) + more
        with pytest.raises(LogStoreError, match="cannot open the log of pod 'other'"):
            gateway.reconfigure(config.parse(changed, {}))
        assert gateway.config is before
        async with joined(gateway, "bob") as bob:
            assert (await receive(bob))["kind"] == "system/welcome"


@pytest.mark.rule("L-29")
async def test_a_start_after_an_orderly_stop_has_little_to_read(tmp_path: Path) -> None:
    durable = DurableGateway(tmp_path)
    durable.text = durable.text.replace(SMALL, "reserve_bytes = 1048576\n")  # large segments

    def to_read() -> tuple[int, int]:
        """Return the segments, and the batches that a start has to apply."""
        folder = tmp_path / "demo"
        recovery = SegmentLog(OsDisk(folder)).recover()
        return len(list(folder.glob("*.seg"))), len(recovery.batches)

    async with durable.join("alice") as (alice, _):
        await say(alice, "m0")
    segments, batches = to_read()
    assert (segments, batches > 0) == (1, True)  # a short log needs no second segment
    async with durable.join("alice") as (alice, _):
        for number in range(1, 30):
            await say(alice, f"m{number}", "x" * 50_000)
    assert to_read() == (2, 0)
    async with durable.join("alice", after="m0") as (alice, welcome):
        assert welcome["resumed"]
        found = await receive_until(alice, "m29")
        heard = [each["id"] for each in found if each["kind"] == "chat"]
        assert heard == [f"m{number}" for number in range(1, 30)]
