"""Speed of a gateway in a cluster, with three NATS servers that sync every write.

Throughput is a share of a gateway with its log in memory, with the same load right after each
other; latency is beside bare JetStream. All servers run on this machine: with fewer cores than
processes the elapsed times say little, so the gateway's CPU time for an envelope is compared, too.
"""

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from nats.aio.client import Client

from benchmarks import _peers as peers
from benchmarks._gateway import GatewayProcess, cpu_seconds, gateway, join, token, wire_to
from benchmarks._report import Comparison, print_comparison
from benchmarks.speed import HIGH, ONE_CONTEXT, ROUNDS, SECONDS, SENDERS, WARM_UP
from mcpp_agents.bench.load import Load
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.config import parse
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.process import allow_many_connections

WINDOW = 512
RATE = 300
IDLE_PODS = 200
IDLE_SECONDS = 10.0
ENVELOPE_BYTES = 400
RECEIVERS = 1000


def run() -> None:
    """Measure throughput, latency and the cost of idle pods, and print the table."""
    peers.pin(0, peers.CLIENT_CORE)
    allow_many_connections()
    with servers() as nats:
        for rows in (throughput(nats, 10, 0.65), throughput(nats, 100, 0.85), latency(nats)):
            for row in rows:
                print_comparison(row)
        print_comparison(two_gateways(nats))
    with servers() as nats:
        share = asyncio.run(idle(nats))
        print(f"{IDLE_PODS} idle pods at 3 gateways: {share:.0%} of one core (goal: at most 20 %)")


@contextmanager
def servers() -> Iterator[NatsServers]:
    """Run three NATS servers with their files on the disk."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        nats = NatsServers(Path(folder), 3, [peers.free_port() for _ in range(6)])
        nats.start()
        try:
            yield nats
        finally:
            nats.stop()


def clustered(nats: NatsServers, name: str) -> list[str]:
    """Return the configuration of a gateway in the cluster."""
    addresses = ", ".join(f'"{each}"' for each in nats.addresses)
    return [
        *("[log]", 'kind = "jetstream"', f'path = "{nats.folder}"'),
        *("[cluster]", f"servers = [{addresses}]", f'name = "{name}"'),
    ]


def throughput(nats: NatsServers, receivers: int, goal: float) -> Iterator[Comparison]:
    """Compare deliveries per second, and envelopes per second of the gateway's CPU time.

    The latter is what the former would be on a machine with a core for each process: once for the
    thread that serves the clients, and once for all threads together, with those that copy the log.
    """
    with ExitStack() as stack:
        sides = [
            _load(stack, receivers, clustered(nats, f"bench{receivers}")),
            _load(stack, receivers, []),
        ]
        rates: list[list[float]] = [[], []]
        by_main: list[list[float]] = [[], []]
        by_all: list[list[float]] = [[], []]
        for turn in range(ROUNDS):
            for side in (0, 1) if turn % 2 else (1, 0):
                load, process = sides[side]
                sent, busy, main_busy = load.sent, process.cpu_seconds(), process.main_cpu_seconds()
                found = load.measure_throughput(window=WINDOW, warm_up=WARM_UP, seconds=SECONDS)
                envelopes = load.sent - sent
                rates[side].append(found.rate)
                by_main[side].append(envelopes / (process.main_cpu_seconds() - main_busy))
                by_all[side].append(envelopes / (process.cpu_seconds() - busy))
        case = f"{receivers} receivers"
        note = f"{median(rates[0]) / receivers:,.0f} acknowledged/s"
        yield Comparison(case, "of memory", goal, rates[0], rates[1], note=note)
        for name, found_by in (("main thread", by_main), ("all threads", by_all)):
            title, note = f"{case}, {name}", f"{1e6 / median(found_by[0]):.1f} µs an envelope"
            shares = found_by[0], found_by[1]
            yield Comparison(title, "of memory", goal, *shares, unit="/CPU s", note=note)


def latency(nats: NatsServers) -> Iterator[Comparison]:
    """Compare the time to the echo with that of a bare JetStream acknowledgement.

    Every round has streams and connections of its own: which server leads a stream, and which one a
    client is connected to, is a matter of chance and makes a difference of a network hop or two.
    """
    cases = (("leader", 1.5, 0), ("another gateway", 2.0, 1))
    bare: list[float] = []
    echoes: dict[str, list[float]] = {case: [] for case, _, _ in cases}
    for turn in range(ROUNDS):
        bare.append(1000 * median(asyncio.run(_bare_latency(nats, f"bare{turn}"))))
        for case, _, others in cases:
            more = clustered(nats, f"{case.replace(' ', '-')}{turn}")
            with ExitStack() as stack:
                for _ in range(others):  # started first, so that it leads
                    stack.enter_context(gateway(2, HIGH, more=more))
                load, _ = _load(stack, 2, more)
                echoes[case].append(1000 * median(load.measure_latency(rate=RATE, seconds=3.0)))
    for case, goal, _ in cases:
        name, against = f"echo p50 at {RATE}/s, {case}", "of bare JetStream"
        yield Comparison(name, against, goal, echoes[case], bare, unit=" ms", at_most=True)


def two_gateways(nats: NatsServers) -> Comparison:
    """Compare two gateways with 500 receivers each to one with 1,000, by CPU time.

    The busier one limits the two. Elapsed times would say how many cores this machine has.
    """
    with ExitStack() as stack:
        more = clustered(nats, "one")
        load, alone = _load(stack, RECEIVERS, more)
        one = _envelopes_per_cpu_second(load, RECEIVERS, [alone])
    with ExitStack() as stack:
        more, half = clustered(nats, "two"), RECEIVERS // 2
        other = stack.enter_context(gateway(RECEIVERS, HIGH, more=more))
        stack.enter_context(_receivers(other, range(half, RECEIVERS)))
        load, first = _load(stack, half, more, participants=RECEIVERS)
        two = _envelopes_per_cpu_second(load, half, [first, other])
    case = f"2 gateways, {half} receivers each"
    return Comparison(case, f"of 1 with {RECEIVERS:,}", 1.6, [two], [one], unit="/CPU s")


def _envelopes_per_cpu_second(load: Load, receivers: int, processes: list[GatewayProcess]) -> float:
    load.measure_throughput(window=64, warm_up=0.1, seconds=0.5)
    busy = [process.cpu_seconds() for process in processes]
    found = load.measure_throughput(window=64, warm_up=0.01, seconds=2 * SECONDS)
    spent = max(each.cpu_seconds() - was for each, was in zip(processes, busy, strict=True))
    return found.rate / receivers * 2 * SECONDS / spent


@contextmanager
def _receivers(running: GatewayProcess, indices: range) -> Iterator[None]:
    """Keep participants joined that discard what they receive."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(join(running, indices))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _bare_latency(nats: NatsServers, name: str) -> list[float]:
    """Return the seconds to the acknowledgement of messages at a steady rate."""
    client = Client()
    await client.connect(nats.addresses)
    stream = client.jetstream()
    await stream.add_stream(name=name, subjects=[name], num_replicas=3)
    await asyncio.sleep(1)  # until all servers know the stream
    times: list[float] = []

    async def publish() -> None:
        began = time.perf_counter()
        await stream.publish(name, bytes(ENVELOPE_BYTES))
        times.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(RATE * 3):
            await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
            group.create_task(publish())
    await client.close()
    return times


async def idle(nats: NatsServers) -> float:
    """Return the share of one core that three gateways and the servers use for idle pods."""
    lines = ["[gateway]", "port = 0", *clustered(nats, "idle")]
    for number in range(IDLE_PODS):
        lines += [
            f"[pods.idle{number}.participants.p]",
            f'token = "{token(number)}"',
            'capabilities = [{ kind = "*" }]',
        ]
    config = parse("\n".join(lines), {})
    running = [Gateway(config, asyncio.get_running_loop()) for _ in range(3)]
    for each in running:
        await each.listen()
    await asyncio.sleep(3)  # until all pods have a leader
    pids = [process.pid for process in nats.processes if process is not None]
    began = time.perf_counter()
    busy = time.process_time() + sum(map(cpu_seconds, pids))
    await asyncio.sleep(IDLE_SECONDS)
    spent = time.process_time() + sum(map(cpu_seconds, pids)) - busy
    share = spent / (time.perf_counter() - began)
    for each in running:
        await each.drain()
    return share


def _load(
    stack: ExitStack, receivers: int, more: list[str], participants: int = 0
) -> tuple[Load, GatewayProcess]:
    configured = participants or receivers
    running = stack.enter_context(gateway(configured, HIGH, peers.SERVER_CORE, more=more))
    senders = min(SENDERS, receivers)
    wire = wire_to(running, receivers, senders, contexts=ONE_CONTEXT)
    load = Load(("127.0.0.1", running.port), wire, clients=receivers, senders=senders)
    return stack.enter_context(load), running
