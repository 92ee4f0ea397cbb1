"""An agent as people run it: a script beside `mcpp up`."""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

import mcpp
from mcpp.client import local_pod
from mcpp.errors import AddressError, BusyError, PodNotFoundError, WrongParticipantError
from tests.interaction.conftest import SocketPod

pytestmark = pytest.mark.anyio

MCPP = str(Path(sys.executable).parent / "mcpp")
AGENT = """
import mcpp

agent = mcpp.Participant("parrot")

@agent.on("chat")
async def repeat(message: mcpp.Message) -> None:
    await message.reply(message.text * 2)

mcpp.run(agent)
"""


@asynccontextmanager
async def started(*command: str, folder: Path, **environ: str) -> AsyncIterator[Process]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MCPP_")}
    process = await anyio.open_process(
        command, cwd=folder, env=kept | environ, stdout=subprocess.DEVNULL, stderr=None
    )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


async def answer(pod: mcpp.Pod) -> mcpp.Message:
    async for message in pod:
        if message.kind == "chat":
            return message
    raise AssertionError


@pytest.fixture
def folder(tmp_path: Path, free_tcp_port: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nothing has run yet, but whose pod will have a port of its own."""
    local_pod.create(tmp_path, port=free_tcp_port)
    (tmp_path / "agent.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MCPP_URL", raising=False)
    monkeypatch.delenv("MCPP_TOKEN", raising=False)
    return tmp_path


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
async def test_an_agent_finds_the_local_pod_answers_and_ends_cleanly(
    folder: Path, ending: signal.Signals
) -> None:
    patient = mcpp.client.connection.Options(keep_trying=True)
    with anyio.fail_after(30):
        # The agent is the first to start, and waits for the gateway.
        async with (
            started(sys.executable, "agent.py", folder=folder) as agent,
            started(MCPP, "up", folder=folder),
            mcpp.connect(name="alice", options=patient) as alice,
        ):
            while "parrot" not in alice.participants:
                await anext(alice)
            await alice.send("chat", {"text": "ab"})
            assert (await answer(alice)).text == "abab"
            agent.send_signal(ending)
            assert await agent.wait() == 0


async def test_a_participant_that_is_new_to_a_running_pod_is_let_in(folder: Path) -> None:
    patient = mcpp.client.connection.Options(keep_trying=True)
    with anyio.fail_after(30):
        async with (
            started(MCPP, "up", folder=folder),
            mcpp.connect(name="first", options=patient),
            mcpp.connect(name="second") as second,
        ):
            await second.send("chat", {"text": "let in"})


async def test_an_agent_with_anothers_token_says_so(folder: Path) -> None:
    pod = local_pod.find()
    assert pod is not None
    with anyio.fail_after(30):
        async with (
            started(MCPP, "up", folder=folder),
            mcpp.connect(name="alice", options=mcpp.client.connection.Options(keep_trying=True)),
        ):
            agent = mcpp.Participant("parrot")
            with pytest.raises(WrongParticipantError, match="'alice'"):
                await agent.run(pod.url, token=pod.token("alice"))


async def test_an_incomplete_address_never_joins_the_local_pod(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = local_pod.find()
    assert pod is not None
    for url, token in (("ws://pods.example/ws", None), (None, "secret"), ("", None)):
        with pytest.raises(PodNotFoundError, match="is not set"):
            async with mcpp.connect(url, token=token, name="alice"):
                pass
    assert pod.participants == []
    monkeypatch.setenv("MCPP_TOKEN", "not a token")
    with pytest.raises(AddressError, match="a token may contain only"):
        async with mcpp.connect("ws://127.0.0.1:1/ws", name="alice"):
            pass


async def test_an_agent_without_a_pod_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MCPP_")}
    with anyio.fail_after(30):
        ended = await anyio.run_process(
            [sys.executable, "agent.py"], cwd=tmp_path, env=kept, check=False
        )
    assert ended.returncode == 2
    (line,) = ended.stderr.decode().splitlines()
    assert line.startswith("parrot: no pod to connect to")


def test_a_gateway_that_answers_is_not_said_to_be_silent() -> None:
    assert str(BusyError("ws://x/ws", "401 who are you?")) == (
        "the gateway at ws://x/ws cannot accept the connection now: 401 who are you?"
    )


async def test_an_agent_says_where_it_has_joined_and_what_it_offers(
    sockets: SocketPod, tmp_path: Path
) -> None:
    tool = "@agent.tool\ndef double(text: str) -> str:\n    return text * 2\n\nmcpp.run(agent)"
    (tmp_path / "agent.py").write_text(AGENT.replace("mcpp.run(agent)", tool))
    sockets.add("parrot")
    environ = {"MCPP_URL": sockets.url, "MCPP_TOKEN": sockets.token("parrot")}
    with anyio.fail_after(30):
        async with await anyio.open_process(
            [sys.executable, "agent.py"], cwd=tmp_path, env=os.environ | environ
        ) as process:
            assert process.stderr is not None
            line = await process.stderr.receive()
            process.kill()
    assert line.decode() == "parrot: joined pod 'test'; tools: double\n"


async def test_the_same_reason_for_a_retry_is_logged_once(
    free_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    attempts = anyio.Event()

    def backoff(attempt: int) -> float:
        if attempt == 5:
            attempts.set()
        return 0.0

    options = mcpp.Options(keep_trying=True, backoff=backoff)
    url = f"ws://127.0.0.1:{free_tcp_port}/ws?pod=test"
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:

            async def connect() -> None:
                async with mcpp.connect(url, token="secret-token", options=options):
                    pass

            tasks.start_soon(connect)
            await attempts.wait()
            tasks.cancel_scope.cancel()
    lines = [record.getMessage() for record in caplog.records if "retrying" in record.getMessage()]
    assert len(lines) == 1


async def test_the_environment_is_enough_to_connect(
    sockets: SocketPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    sockets.add("ada")
    monkeypatch.setenv("MCPP_URL", sockets.url)
    monkeypatch.setenv("MCPP_TOKEN", sockets.token("ada"))
    with anyio.fail_after(30):
        async with mcpp.connect() as pod:
            assert pod.me == "ada"
    monkeypatch.delenv("MCPP_TOKEN")
    with pytest.raises(PodNotFoundError, match="MCPP_TOKEN is not set"):
        async with mcpp.connect():
            pass
    monkeypatch.delenv("MCPP_URL")
    with pytest.raises(PodNotFoundError, match="set MCPP_URL and MCPP_TOKEN"):
        async with mcpp.connect():
            pass


@pytest.mark.parametrize("form", ["ws://{}?pod=test", "ws://{}/?pod=test", "http://{}?pod=test"])
async def test_an_address_without_its_path_works(sockets: SocketPod, form: str) -> None:
    sockets.add("ada")
    url = form.format(f"127.0.0.1:{sockets.port}")
    with anyio.fail_after(30):
        async with mcpp.connect(url, token=sockets.token("ada")) as pod:
            assert pod.name == "test"
