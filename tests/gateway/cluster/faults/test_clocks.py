"""A real cluster under load while the clocks of its gateways are set forward and back.

A small library gives every gateway a system clock of its own, as far from ours as a file says. All
else goes on as it does when an operator or NTP sets the time. libfaketime would not do: it also
changes waits by the monotonic clock, and some of them then fail (0.9.10).
"""

import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import anyio
import pytest

from tests.gateway.cluster.faults.processes import ClusterProcesses
from tests.gateway.cluster.faults.test_faults import cluster_under_load, progress
from tests.gateway.durability.workload import Witness

LIBRARY = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const long long *ahead;

static __attribute__((constructor)) void begin(void) {
    int file = open(getenv("TEST_CLOCK"), O_RDONLY);
    ahead = mmap(0, sizeof *ahead, PROT_READ, MAP_SHARED, file, 0);
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += *ahead;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    int failed = clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return failed;
}

time_t time(time_t *place) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (place) *place = found.tv_sec;
    return found.tv_sec;
}
"""

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


class SteppedCluster(ClusterProcesses):
    """A cluster whose gateways have clocks that can be set."""

    def __init__(self, folder: Path, participants: int) -> None:
        super().__init__(folder, participants)
        self.folder = folder
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so"), "-xc", "-"]
        subprocess.run(command, input=LIBRARY, text=True, check=True)
        for number in range(3):
            self._file(number).write_bytes(bytes(8))

    def environment(self, number: int) -> dict[str, str]:
        return {
            **os.environ,
            "LD_PRELOAD": str(self.folder / "clock.so"),
            "TEST_CLOCK": str(self._file(number)),
        }

    def set_clock(self, number: int, seconds: int) -> None:
        """Set the clock of a gateway ahead of ours, or behind."""
        with self._file(number).open("r+b") as file:  # in place: the gateway has it in memory
            file.write(struct.pack("q", seconds))

    def ahead(self, number: int) -> Iterator[float]:
        """Yield how far the times of a gateway's log lines are ahead of when the file changed."""
        path = self.folder / f"gateway-{number}.log"
        written = path.stat().st_mtime
        for line in path.read_text().splitlines():
            if line[:4].isdecimal():
                yield datetime.fromisoformat(line.split()[0]).astimezone(UTC).timestamp() - written

    def _file(self, number: int) -> Path:
        return self.folder / f"clock-{number}"


async def step(cluster: SteppedCluster, witnesses: list[Witness], random: Random) -> None:
    """Set the leader's clock while it runs; start it again with that clock, and let it lead."""
    number = await cluster.wait_for_leader()
    cluster.set_clock(number, random.choice((-600, -90, 120, 600)))
    await progress(witnesses)
    await anyio.to_thread.run_sync(cluster.end_gateway, number, signal.SIGKILL)
    cluster.start_gateway(number)
    await cluster.wait_for_gateway(number)
    await progress(witnesses)
    for other in range(3):  # those with other clocks hand over to it
        if other != number and random.random() < 0.5:
            await anyio.to_thread.run_sync(cluster.end_gateway, other, signal.SIGTERM)
            cluster.start_gateway(other)
            await cluster.wait_for_gateway(other)
            await progress(witnesses)


async def run(folder: Path, seed: int, steps: int) -> None:
    random = Random(seed)
    cluster = SteppedCluster(folder, 4)
    async with cluster_under_load(cluster) as witnesses:
        for _ in range(steps):
            await step(cluster, witnesses, random)
    furthest = max(abs(each) for number in range(3) for each in cluster.ahead(number))
    assert furthest > 60, "the clocks were not set"


@pytest.mark.rule("G-52", "N-01", "N-06")
async def test_clock_steps_under_load_lose_and_repeat_nothing(tmp_path: Path) -> None:
    await run(tmp_path, 1, 1)


@pytest.mark.torture
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", range(3))
async def test_sixty_clock_steps_under_load_lose_and_repeat_nothing(
    tmp_path: Path, seed: int
) -> None:
    await run(tmp_path, seed, 20)
