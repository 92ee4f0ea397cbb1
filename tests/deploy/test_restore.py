"""Backup and restore as docs/operations.md describes them, with clients that stay."""

import asyncio
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

import mcpp
from tests.gateway.ports import free_port
from tests.gateway.sockets import config_text, token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
MCPP = str(Path(sys.executable).parent / "mcpp")
DEPLOY = Path(__file__).parents[2] / "deploy"
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
    """With signed tokens, in folders as in the sample."""
    sample = tomllib.loads((DEPLOY / "gateway.toml").read_text())
    data, tokens = (
        tmp_path / Path(sample[section]["path"]).relative_to("/var/lib")
        for section in ("log", "tokens")
    )
    backup, config = tmp_path / "backup", tmp_path / "gateway.toml"
    tokens.parent.mkdir(parents=True)
    port = free_port()
    text = config_text(messages_per_second=0).replace("port = 0", f"port = {port}")
    text += f'\n[log]\nkind = "file"\npath = "{data}"\n'
    config.write_text(f'{text}[tokens]\npath = "{tokens}"\n')
    signed = run("token", "ada", "--pod", "demo", "--expires", "1h", "--config", config).strip()
    url = f"ws://127.0.0.1:{port}/ws?pod=demo"
    gaps: list[mcpp.Gap] = []
    async with asyncio.timeout(2 * BOUND), AsyncExitStack() as clients:
        async with started(config):
            alice = await clients.enter_async_context(mcpp.connect(url, token=token("alice")))
            joining = mcpp.connect(url, token=token("bob"), on_gap=gaps.append)
            bob = await clients.enter_async_context(joining)
            ada = await clients.enter_async_context(mcpp.connect(url, token=signed))
            for number in range(50):
                await alice.send("chat", f"kept {number}")
            await asyncio.to_thread(run, "log", "backup", data, backup)
            for number in range(5):
                await alice.send("chat", f"lost {number}")
            await texts_until(bob, "lost 4")
        await asyncio.to_thread(run, "log", "verify", backup)
        data.rename(tmp_path / "log.before")
        shutil.copytree(backup, data)
        async with started(config):
            await alice.send("chat", "back again")
            heard = await texts_until(bob, "back again")
            assert not [text for text in heard if text.startswith("lost")]
            assert gaps, "a client that knows more than the log is told"
            past = [message.text async for message in alice.history()]
            kept = [f"kept {number}" for number in range(50)]
            assert [text for text in past if text] == [*kept, "back again"]
            await ada.send("chat", "still admitted")
            await texts_until(bob, "still admitted")
            await clients.aclose()
