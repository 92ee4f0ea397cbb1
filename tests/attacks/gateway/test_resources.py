"""Attacks on the gateway's memory, its log and its file descriptors."""

import asyncio
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.attacks.gateway.attackers import discard
from tests.attacks.gateway.process import (
    HONEST,
    Victim,
    attack,
    configuration,
    connect,
    envelope,
    gateway,
)
from tests.gateway.sockets import RawClient

MCPP = str(Path(sys.executable).parent / "mcpp")
BOUND_SECONDS = 30.0


def request(port: int, headers: str = "", path: str = "/ws") -> bytes:
    """Send one HTTP request and return the answer's first line."""
    with socket.create_connection(("127.0.0.1", port), timeout=BOUND_SECONDS) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        return client.recv(4096).partition(b"\r\n")[0]


@pytest.mark.rule("G-67")
def test_a_log_that_nobody_reads_does_not_stop_the_gateway(tmp_path: Path) -> None:
    """Its standard error is a pipe; 447 refused requests filled it, and the gateway stood still."""
    config = tmp_path / "config.toml"
    config.write_text(configuration(0))
    command = [MCPP, "gateway", "--config", str(config)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        found = re.search(rb"port=(\d+)", process.stderr.readline())
        assert found is not None
        port = int(found[1])
        # As if it were full already: a pipe takes 64 kB, and lines that repeat are left out.
        filler = os.open(f"/proc/{process.pid}/fd/2", os.O_WRONLY | os.O_NONBLOCK)
        with suppress(BlockingIOError):
            while os.write(filler, b"x" * 4096):
                pass
        for number in range(600):
            headers = f"Origin: http://evil-{number}.example\r\n"
            assert request(port, headers).startswith(b"HTTP/1.1 403")
        assert request(port, path="/healthz").startswith(b"HTTP/1.1 200")
        os.close(filler)
        process.terminate()
        process.wait(BOUND_SECONDS)
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


async def fill_outboxes(victim: Victim, connections: int, sent: int) -> int:
    """Join without reading, have large envelopes broadcast; return the most memory seen."""
    idle = [await connect(victim.port, f"p{number}") for number in range(connections)]
    for each in idle:
        each.writer.transport.pause_reading()  # type: ignore[attr-defined]
    sender = await connect(victim.port, "alice")
    most = 0
    payload = "x" * 500_000
    for number in range(sent):
        sender.writer.write(envelope("alice", f"big-{number}", payload=payload))
        while f"big-{number}".encode() not in (await sender.frame())[1]:
            pass
        most = max(most, victim.resident_bytes())
    for each in idle:
        each.writer.transport.abort()
    sender.writer.close()
    return most


def settle(victim: Victim, below: int) -> int:
    deadline = time.monotonic() + BOUND_SECONDS
    while victim.resident_bytes() > below and time.monotonic() < deadline:
        time.sleep(0.1)
    return victim.resident_bytes()


@pytest.mark.rule("G-68")
@pytest.mark.parametrize("connections", [40, pytest.param(300, marks=pytest.mark.torture)], ids=str)
def test_unread_connections_do_not_take_more_than_the_budget(connections: int) -> None:
    """Before, 300 of them took 2.4 GB and kept it."""
    limits = {"pod_outbox_bytes": 33_554_432, "history_bytes": 4_000_000}
    with gateway(configuration(connections, **limits)) as victim:  # type: ignore[arg-type]
        before = victim.resident_bytes()
        most = asyncio.run(fill_outboxes(victim, connections, sent=24))
        assert most - before < 33_554_432 + 33_554_432 + 60_000_000
        assert settle(victim, before + 50_000_000) < before + 50_000_000


@pytest.mark.rule("G-69")
@pytest.mark.parametrize("uvloop", [True, False])
def test_running_out_of_file_descriptors_is_logged(tmp_path: Path, uvloop: bool) -> None:
    config, log = tmp_path / "config.toml", tmp_path / "log.txt"
    config.write_text(configuration(0))
    hide = "" if uvloop else "sys.modules['uvloop'] = None; "
    code = f"import sys; {hide}from mcpp_gateway.commands import gateway; gateway(sys.argv[1:])"
    command = [sys.executable, "-c", code, "--config", str(config)]

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, preexec_fn=few_files)
    try:
        with ExitStack() as stack:
            deadline = time.monotonic() + BOUND_SECONDS
            while (found := re.search(r"listening .*port=(\d+)", log.read_text())) is None:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            for _ in range(60):
                client = socket.create_connection(("127.0.0.1", int(found[1])), timeout=5)
                stack.enter_context(client)
            while "no file descriptors left" not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
    finally:
        process.kill()
        process.wait()


@pytest.mark.rule("G-64", "G-49")
@pytest.mark.parametrize("seconds", [2, pytest.param(10, marks=pytest.mark.torture)], ids=str)
def test_participants_that_rejoin_do_not_fill_the_log(seconds: float) -> None:
    """Before, 20 that rejoined made 94 % of the log presence."""

    async def history(victim: Victim) -> list[str]:
        client = await connect(victim.port, "bob")
        kinds: list[str] = []
        deadline = time.monotonic() + seconds
        number = 0
        while time.monotonic() < deadline:
            client.writer.write(envelope("bob", f"m-{number}"))
            id, kind = "", ""
            while id != f"m-{number}":
                found = json.loads((await client.frame())[1])
                id, kind = found["id"], found["kind"]
                kinds.append(kind)
            number += 1
            await asyncio.sleep(0.01)
        client.writer.close()
        return kinds

    with gateway(configuration(20)) as victim, attack("rejoin", victim):
        kinds = asyncio.run(history(victim))
    presences = kinds.count("system/presence")
    assert presences <= 25 + 11 * seconds
    assert kinds.count("chat") > 0


@pytest.mark.rule("G-06")
@pytest.mark.parametrize("guesses", [30, pytest.param(5000, marks=pytest.mark.torture)], ids=str)
def test_few_guesses_are_evaluated_and_the_owner_gets_in(guesses: int) -> None:
    """Before, 1,106 guesses a second were evaluated."""

    async def guess(port: int, number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = "GET /ws HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer"
        writer.write(f"{head} g{number}\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    async def run(port: int) -> list[bytes]:
        found: list[bytes] = []
        for start in range(0, guesses, 100):
            numbers = range(start, min(start + 100, guesses))
            found += await asyncio.gather(*(guess(port, number) for number in numbers))
        (await connect_patiently(port)).writer.close()
        return found

    async def connect_patiently(port: int) -> RawClient:
        for _ in range(100):
            try:
                return await connect(port, "alice")
            except ConnectionError:
                await asyncio.sleep(0.2)
        raise AssertionError("the owner is locked out")

    with gateway(configuration(0)) as victim:
        began = time.monotonic()
        answers = asyncio.run(run(victim.port))
        seconds = time.monotonic() - began
    unseen = sum(b"too many wrong tokens; try again" in each for each in answers)
    assert guesses - unseen <= 10 + 10 + 5 * seconds + 1


async def expire_together(victim: Victim, colluders: int) -> list[int]:
    """Open as many contexts as colluders may, let them expire; return what readers were told."""
    per_colluder = 256
    # None of them hears the others' envelopes: they would measure how fast this process reads.
    only_own = {name: "filter=" + quote(json.dumps({"from": name})) for name in HONEST}
    readers = [await connect(victim.port, name, query) for name, query in only_own.items()]

    async def count_expired(reader: RawClient) -> int:
        expired = 0
        while expired < colluders * per_colluder:
            opcode, data = await reader.frame()
            assert opcode != 0x8, f"closed: {data[2:]!r}"
            payload = json.loads(data)["payload"] if b'"system/context"' in data else {}
            if payload.get("event") == "expired":
                expired += len(payload.get("contexts", [1]))
        return expired

    async def collude(name: str) -> None:
        client = await connect(victim.port, name, only_own[HONEST[0]])
        discarding = asyncio.create_task(discard(client))
        for number in range(per_colluder):
            context = {"id": f"{name}-{'c' * 100}-{number}", "type": "t" * 500}
            client.writer.write(envelope(name, f"{name}-{number}", context=context))
            await client.writer.drain()
        await discarding

    counting = [asyncio.create_task(count_expired(each)) for each in readers]
    tasks = [asyncio.create_task(collude(f"p{index}")) for index in range(colluders)]
    try:
        async with asyncio.timeout(BOUND_SECONDS * 3):
            return await asyncio.gather(*counting)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.rule("C-18", "G-38")
@pytest.mark.parametrize("colluders", [8, pytest.param(39, marks=pytest.mark.torture)], ids=str)
def test_contexts_that_expire_together_close_no_reader(colluders: int) -> None:
    """Before, what 39 colluders let expire was one write, and readers were closed as slow."""
    text = configuration(
        colluders,
        context_idle_seconds=2,
        max_message_bytes=65_536,
        outbox_bytes=262_144,
        messages_per_second=0,
    )
    with gateway(text) as victim:
        told = asyncio.run(expire_together(victim, colluders))
    assert told == [colluders * 256] * len(HONEST)
