"""Echoed means durable: the order of system calls, a full disk, and a write that fails."""

import re
import shutil
import signal
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import anyio
import pytest

import mcpp
from mcpp import Options, Refused
from tests.gateway.durability.workload import QUICK, DurableProcess
from tests.gateway.sockets import token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

CALLS = "pwrite64,fdatasync,write,writev,sendto,sendmsg"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.rule("G-50")
async def test_an_echo_is_sent_after_its_sync_has_returned(tmp_path: Path) -> None:
    gateway = DurableProcess(tmp_path, 2)
    gateway.start()
    trace = tmp_path / "trace"
    try:
        async with mcpp.connect(gateway.url, token=token("p0"), options=QUICK) as pod:
            command = ["strace", "-f", "-s", "65536", "-e", f"trace={CALLS}", "-o", str(trace)]
            process = await anyio.open_process([*command, "-p", str(gateway.pid)])
            assert process.stderr is not None
            await process.stderr.receive()  # "attached"
            echoes = [(await pod.send("chat", {"n": number})).id for number in range(20)]
            process.send_signal(signal.SIGINT)
            await process.wait()
    finally:
        gateway.close()
    lines = trace.read_text().splitlines()
    for id in echoes:
        stored = first(lines, 0, rf"pwrite64\(.*{id}")
        synced = first(lines, stored, r"fdatasync(\(\d+\)| resumed>\))\s+= 0")
        sent = min(
            number
            for number, line in enumerate(lines)
            if id in line and re.search(r"\b(write|writev|sendto|sendmsg)\(", line)
        )
        assert stored < synced < sent


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.rule("G-54")
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
async def test_a_write_that_fails_ends_the_gateway_before_anything_is_sent(
    tmp_path: Path, call: str
) -> None:
    gateway = DurableProcess(tmp_path, 2)
    gateway.start()
    seen: list[str] = []
    try:
        async with (
            mcpp.connect(gateway.url, token=token("p1"), options=QUICK) as other,
            mcpp.connect(gateway.url, token=token("p0"), options=QUICK) as pod,
        ):
            kept = await pod.send("chat", {"text": "before"})
            inject = ["-e", f"inject={call}:error=EIO", "-e", f"trace={call}"]
            command = ["strace", "-f", "-o", "/dev/null", *inject, "-p", str(gateway.pid)]
            process = await anyio.open_process(command)
            assert process.stderr is not None
            await process.stderr.receive()  # "attached"
            lost = await pod.send("chat", {"text": "never stored"}, wait=False)
            with anyio.fail_after(10):
                assert await anyio.to_thread.run_sync(gateway.wait) == 74
                await process.wait()
            gateway.start()  # with a disk that works again: the sender tries again by itself
            while lost.id not in seen:
                seen.append((await anext(other)).id)
        assert seen.count(kept.id) == seen.count(lost.id) == 1
    finally:
        gateway.close()


def first(lines: list[str], start: int, pattern: str) -> int:
    return next(n for n in range(start, len(lines)) if re.search(pattern, lines[n]))


async def fill(pod: mcpp.Pod, text: str) -> tuple[list[str], Refused]:
    """Send until the gateway refuses; return the ids it accepted and the refusal."""
    accepted: list[str] = []
    while True:
        try:
            accepted.append((await pod.send("chat", {"text": text})).id)
        except Refused as refused:
            return accepted, refused


async def health(gateway: DurableProcess) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        try:
            with urlopen(f"http://127.0.0.1:{gateway.port}/healthz", timeout=5) as answer:
                return answer.status, answer.read().decode().strip()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode().strip()

    return await anyio.to_thread.run_sync(ask)


@pytest.mark.rule("G-55")
async def test_a_full_disk_refuses_envelopes_and_recovers_by_itself(small_disk: Path) -> None:
    gateway = DurableProcess(small_disk, 2, reserve_bytes=2 << 20, segment_bytes=1 << 20)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(3 << 20))
    gateway.start()
    impatient = Options(keep_trying=True, rate_limit_seconds=0.0)
    try:
        async with mcpp.connect(gateway.url, token=token("p0"), options=impatient) as pod:
            accepted, refused = await fill(pod, "x" * 60_000)
            assert refused.code == "unavailable"
            assert await health(gateway) == (503, "no space left for the log")
            # Reading and joining go on.
            async with mcpp.connect(
                gateway.url, token=token("p1"), last=10, options=impatient
            ) as other:
                assert other.history == 10
                ballast.unlink()
                with anyio.fail_after(20):
                    while (await health(gateway))[0] == 503:
                        await anyio.lowlevel.checkpoint()
                later = await pod.send("chat", {"text": "there is room again"})
                while (await anext(other)).id != later.id:
                    pass
        gateway.end(signal.SIGKILL)
        gateway.start()
        async with mcpp.connect(
            gateway.url, token=token("reader"), last=len(accepted) + 20, options=impatient
        ) as pod:
            seen = [(await anext(pod)).id for _ in range(pod.history)]
        assert [id for id in seen if id in {*accepted, later.id}] == [*accepted, later.id]
    finally:
        gateway.close()
