"""Damage to what a killed gateway had acknowledged: found at the next start, never dropped."""

import signal
import subprocess
from pathlib import Path

import anyio
import pytest

import mcpp
from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.segments import HEADER_BYTES, MARK
from tests.gateway.durability.workload import MCPP, QUICK, DurableProcess
from tests.gateway.sockets import token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def ends_with_a_mark(segment: Path) -> bool:
    file = OsDisk(segment.parent).open(segment.name, write=False)
    *_, last = segments.read_heads(file, HEADER_BYTES, file.size)
    file.close()
    return last.kind == MARK


@pytest.mark.rule("L-08", "L-26", "G-16")
async def test_a_flipped_bit_in_the_last_envelope_of_a_killed_gateway_is_no_torn_write(
    tmp_path: Path,
) -> None:
    gateway = DurableProcess(tmp_path, 1)
    gateway.start()
    try:
        async with mcpp.connect(gateway.url, token=token("p0"), options=QUICK) as pod:
            await pod.send("chat", {"text": "first"})
            last = await pod.send("chat", {"text": "last"})
            (segment,) = (tmp_path / "data" / "demo").glob("*.seg")
            with anyio.fail_after(10):
                while not ends_with_a_mark(segment):
                    await anyio.lowlevel.checkpoint()
            gateway.end(signal.SIGKILL)
    finally:
        gateway.close()
    content = bytearray(segment.read_bytes())
    content[content.rindex(last.id.encode())] ^= 1
    segment.write_bytes(content)
    command = [MCPP, "gateway", "--config", str(tmp_path / "gateway.toml")]
    found = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)  # noqa: ASYNC221
    assert found.returncode != 0
    assert "the log of pod 'demo' is damaged" in found.stderr
    assert segment.read_bytes() == content
