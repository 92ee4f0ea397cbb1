"""Backup and restore as docs/operations.md describes them, with clients that stay."""

import asyncio
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import mcpp
from tests.gateway.ports import free_port
from tests.gateway.sockets import config_text, token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MCPP = str(Path(sys.executable).parent / "mcpp")
BOUND = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def started(config: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a gateway, which is killed at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        MCPP, "gateway", "--config", str(config), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        while b" listening " not in (line := await process.stderr.readline()):
            assert line, "the gateway has ended"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def run(*arguments: object) -> str:
    done = subprocess.run([MCPP, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def texts_until(pod: mcpp.Pod, last: str) -> list[str]:
    heard: list[str] = []
    while last not in heard:
        heard.append((await anext(pod)).text)
    return heard


async def test_clients_go_on_after_the_log_was_lost_and_restored(tmp_path: Path) -> None:
    data, backup, config = tmp_path / "data", tmp_path / "backup", tmp_path / "gateway.toml"
    port = free_port()
    text = config_text(messages_per_second=0).replace("port = 0", f"port = {port}")
    config.write_text(f'{text}\n[log]\nkind = "file"\npath = "{data}"\n')
    url = f"ws://127.0.0.1:{port}/ws?pod=demo"
    gaps: list[mcpp.Gap] = []
    async with asyncio.timeout(2 * BOUND), AsyncExitStack() as clients:
        async with started(config):
            alice = await clients.enter_async_context(mcpp.connect(url, token=token("alice")))
            joining = mcpp.connect(url, token=token("bob"), on_gap=gaps.append)
            bob = await clients.enter_async_context(joining)
            for number in range(50):
                await alice.send("chat", f"kept {number}")
            await asyncio.to_thread(run, "log", "backup", data, backup)
            for number in range(5):
                await alice.send("chat", f"lost {number}")
            await texts_until(bob, "lost 4")
        shutil.rmtree(data)  # the disk
        await asyncio.to_thread(run, "log", "verify", backup)
        shutil.copytree(backup, data)
        async with started(config):
            await alice.send("chat", "back again")
            heard = await texts_until(bob, "back again")
            assert not [text for text in heard if text.startswith("lost")]
            assert gaps, "a client that knows more than the log is told"
            past = [message.text async for message in alice.history()]
            kept = [f"kept {number}" for number in range(50)]
            assert [text for text in past if text] == [*kept, "back again"]
            await clients.aclose()
