"""Speed of a gateway with its log in files, as a share of one with its log in memory.

Both run side by side with the same load, in pairs right after each other. A sync of the disk under
test is measured first, because everything else depends on it.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import mcpp
from benchmarks import _peers as peers
from benchmarks._gateway import GatewayProcess, gateway, token, wire_to
from benchmarks._report import Comparison, print_comparison
from benchmarks.speed import HIGH, ONE_CONTEXT, ROUNDS, SECONDS, SENDERS, WARM_UP
from mcpp_agents.bench.load import Load
from mcpp_gateway.config import Config, parse
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.process import allow_many_connections

# In flight for each sender: enough that a sync is shared by many.
WINDOW = 512
ENTRIES = 1_000_000
# Not in a temporary folder, which may be in memory.
FOLDER = Path.cwd()


def run() -> None:
    """Measure throughput and latency of both, and print the table."""
    peers.pin(0, peers.CLIENT_CORE)
    allow_many_connections()
    print(f"a sync takes {1000 * sync_seconds():.2f} ms here")
    for row in (*throughput(4, 0.75), *throughput(10, 0.75), *throughput(100, 0.8), *latency()):
        print_comparison(row)
    recovery()


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


def recovery() -> None:
    """Fill a log with a million envelopes, and print how long it takes to open it again."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        config = _local_config(folder)
        asyncio.run(_fill(config))
        began = time.perf_counter()
        asyncio.run(_open(config))
        print(f"{ENTRIES:,} envelopes: opened again in {time.perf_counter() - began:.2f} s")
        for file in Path(folder, "bench").glob("*.sqlite*"):
            file.unlink()
        began = time.perf_counter()
        asyncio.run(_open(config))
        print(f"{'':9} without its index in {time.perf_counter() - began:.2f} s")


def _local_config(folder: str) -> Config:
    return parse(
        f"""
        [gateway]
        port = 0
        [limits]
        messages_per_second = 0
        context_messages_per_second = 0
        [log]
        kind = "file"
        path = "{folder}"
        [pods.bench.participants.p0]
        token = "{token(0)}"
        capabilities = [{{ kind = "*" }}]
        """,
        {},
    )


async def _fill(config: Config) -> None:
    running = Gateway(config, asyncio.get_running_loop())
    await running.listen()
    pod = running.pods["bench"]
    session, _ = pod.join("p0", time.time())
    for first in range(0, ENTRIES, 1000):
        for number in range(first, first + 1000):
            context = mcpp.new_context("task", id=f"c{number % 100}")
            text = {"text": "x" * 200}
            envelope = mcpp.new_envelope("chat", text, sender="p0", context=context)
            pod.receive(session, mcpp.encode(envelope), time.time())
        while pod.journal.committed < pod.journal.end:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await running.drain()


async def _open(config: Config) -> None:
    running = Gateway(config, asyncio.get_running_loop())
    await running.listen()
    assert running.pods["bench"].journal.end > ENTRIES
    await running.drain()


def _load(stack: ExitStack, receivers: int, *, in_files: bool) -> tuple[Load, GatewayProcess]:
    log = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=FOLDER))) if in_files else None
    running = stack.enter_context(gateway(receivers, HIGH, peers.SERVER_CORE, log))
    wire = wire_to(running, receivers, SENDERS, contexts=ONE_CONTEXT)
    address = ("127.0.0.1", running.port)
    return stack.enter_context(Load(address, wire, clients=receivers, senders=SENDERS)), running
