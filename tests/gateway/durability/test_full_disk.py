"""A gateway on a full disk starts, without an index too, and builds that when there is space."""

from pathlib import Path

import anyio
import pytest

from mcpp_gateway.storage import log_store
from tests.gateway.durability.test_log_store import DurableGateway, read, say
from tests.gateway.sockets import joined, receive

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def fill(folder: Path) -> Path:
    """Use up all space of a disk."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65_536, 4096, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return ballast


@pytest.mark.rule("L-17", "G-55")
async def test_a_gateway_starts_on_a_full_disk_without_an_index(
    small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_store, "_INDEX_RETRY_SECONDS", 0.0)
    durable = DurableGateway(small_disk, history_messages=5)
    async with durable.join("alice") as (alice, _):
        for number in range(40):
            await say(alice, f"m{number}")
    for file in (small_disk / "demo").glob("index.sqlite*"):
        file.unlink()
    ballast = fill(small_disk)
    async with durable.run() as gateway:
        assert gateway.logs is not None
        assert not list((small_disk / "demo").glob("index.sqlite-wal"))
        async with joined(gateway, "alice", query={"after": "m3"}) as alice:
            welcome = (await receive(alice))["payload"]
            assert (welcome["resumed"], welcome["replayed"]) == (True, 36)
            assert [each["id"] for each in await read(alice, 2)] == ["m4", "m5"]
        ballast.unlink()
        index = small_disk / "demo" / "index.sqlite"
        with anyio.fail_after(10):
            while not index.exists() or index.stat().st_size == 0:
                gateway.logs.check()
                await anyio.sleep(0.01)
        async with joined(gateway, "alice", query={"after": "m3"}) as alice:
            assert (await receive(alice))["payload"]["resumed"]
