"""Speed of a gateway with its log in files, as a share of one with its log in memory.

Both run side by side with the same load, in pairs right after each other. A sync of the disk under
test is measured first, because everything else depends on it.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks import _peers as peers
from benchmarks._gateway import GatewayProcess, gateway, token
from benchmarks._report import Comparison, print_comparison
from benchmarks.speed import HIGH, ONE_CONTEXT, ROUNDS, SECONDS, SENDERS, WARM_UP
from mcpp_agents.bench.load import Load
from mcpp_agents.bench.wire import GatewayWire
from mcpp_gateway.process import allow_many_connections

# In flight for each sender: enough that a sync is shared by many.
WINDOW = 512
# Not in a temporary folder, which may be in memory.
FOLDER = Path.cwd()


def run() -> None:
    """Measure throughput and latency of both, and print the table."""
    peers.pin(0, peers.CLIENT_CORE)
    allow_many_connections()
    print(f"a sync takes {1000 * sync_seconds():.2f} ms here")
    for row in (*throughput(10, 0.75), *throughput(100, 0.8), *latency()):
        print_comparison(row)


def sync_seconds() -> float:
    """Return the median time of writing and syncing 4 KiB to an allocated file."""
    times: list[float] = []
    with tempfile.NamedTemporaryFile(dir=FOLDER) as file:
        os.posix_fallocate(file.fileno(), 0, 1 << 20)
        os.fsync(file.fileno())
        for number in range(200):
            began = time.perf_counter()
            os.pwrite(file.fileno(), bytes(4096), number * 4096)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return median(times)


def throughput(receivers: int, goal: float) -> Iterator[Comparison]:
    """Compare deliveries per second."""
    with ExitStack() as stack:
        durable, process = _load(stack, receivers, in_files=True)
        memory, _ = _load(stack, receivers, in_files=False)
        ours: list[float] = []
        theirs: list[float] = []
        resident = process.resident_bytes()
        for turn in range(ROUNDS):
            for load, rates in ((durable, ours), (memory, theirs))[:: 1 if turn % 2 else -1]:
                found = load.measure_throughput(window=WINDOW, warm_up=WARM_UP, seconds=SECONDS)
                rates.append(found.rate)
        grown = (process.resident_bytes() - resident) >> 20
        note = f"{median(ours) / receivers:,.0f} acknowledged/s, memory +{grown} MiB"
        yield Comparison(f"{receivers} receivers", "of memory", goal, ours, theirs, note=note)


def latency() -> Iterator[Comparison]:
    """Compare the time to the last of 10 receivers at 1,000 envelopes a second."""
    with ExitStack() as stack:
        durable, _ = _load(stack, 10, in_files=True)
        memory, _ = _load(stack, 10, in_files=False)
        ours = sorted(durable.measure_latency(rate=1000, seconds=3.0))
        theirs = sorted(memory.measure_latency(rate=1000, seconds=3.0))
        for name, share in (("p50", 0.5), ("p99", 0.99)):
            mine, other = (1000 * each[int(share * len(each))] for each in (ours, theirs))
            yield Comparison(
                f"10 receivers, 1,000/s, {name}", "of memory", None, [mine], [other], unit=" ms"
            )


def _load(stack: ExitStack, receivers: int, *, in_files: bool) -> tuple[Load, GatewayProcess]:
    log = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))) if in_files else None
    running = stack.enter_context(gateway(receivers, HIGH, peers.SERVER_CORE, log))
    wire = GatewayWire(
        f"127.0.0.1:{running.port}",
        "/ws",
        [token(index) for index in range(receivers)],
        senders=[f"p{index}" for index in range(SENDERS)],
        contexts=ONE_CONTEXT,
    )
    address = ("127.0.0.1", running.port)
    return stack.enter_context(Load(address, wire, clients=receivers, senders=SENDERS)), running
