"""Speed of the gateway, with all checks on, compared with common message brokers.

Ratios of deliveries per second are medians of pairs measured right after each other, because the
speed of a shared machine varies by a factor of two within seconds. Authentication, twenty
capability patterns (one reads the payload), depth, rate limits (set high), deduplication and
history are on. Server and clients run on one core each, if there are two. A note marks figures for
which the clients were busy more than 90 % of the time: they were then the bottleneck.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from importlib import metadata
from typing import Any, NamedTuple

from benchmarks import _peers as peers
from benchmarks import idle
from benchmarks._gateway import gateway, wire_to
from benchmarks._report import Comparison, print_comparison, save
from mcpp import Context
from mcpp_agents.bench.load import Load, WireProtocol
from mcpp_agents.bench.wire import GatewayWire
from mcpp_gateway.process import allow_many_connections

ROUNDS = 5
SECONDS = 1.0
WARM_UP = 0.3
WINDOW = 64
SENDERS = 4
CLIENT_BOUND = 0.9

HIGH = {
    "messages_per_second": 10_000_000,
    "burst": 10_000_000,
    "context_messages_per_second": 10_000_000,
    "context_burst": 10_000_000,
    "max_contexts_per_participant": 20_000,
    "max_contexts_per_pod": 20_000,
}
ONE_CONTEXT = (Context(id="context-00000", type="reasoning"),)

Peer = tuple[
    Callable[[], AbstractContextManager[peers.PeerServer]],
    Callable[[int, int, WireProtocol], WireProtocol],
]
PEERS: dict[str, Peer] = {
    "nats-server": (peers.nats, lambda port, size, ours: peers.NatsWire(size)),
    "Redis": (peers.redis, lambda port, size, ours: peers.RedisWire(size)),
    "websockets": (
        peers.websockets_broadcast,
        lambda port, size, ours: peers.WebSocketWire(port, ours),
    ),
    "Node ws": (peers.node_ws, lambda port, size, ours: peers.WebSocketWire(port, ours)),
}


class Side(NamedTuple):
    """A load generator and the server that it runs against."""

    load: Load
    server: peers.PeerServer


def run() -> None:
    """Run every case, print the table, and save it."""
    peers.pin(0, peers.CLIENT_CORE)
    rows: list[Comparison] = []

    def add(found: Iterator[Comparison]) -> None:
        for row in found:
            print_comparison(row)
            rows.append(row)

    with ExitStack() as stack:
        running = {name: _start(stack, start) for name, (start, _) in PEERS.items()}
        present = {name: found for name, found in running.items() if found is not None}
        absent = [name for name in PEERS if name not in present]
        if absent:
            print(f"absent: {', '.join(absent)} (make setup-bench)")
        everyone = {"nats-server": 3.0, "Redis": None, "websockets": 20.0, "Node ws": 20.0}
        add(fan_out(present, 100, 400, everyone))
        add(fan_out(present, 10, 400, {"nats-server": 0.7, "Redis": None}))
        add(fan_out(present, 1000, 400, {"nats-server": 10.0}))
        add(fan_out(present, 100, 4_000, {"nats-server": 2.0}))
        add(fan_out(present, 100, 64_000, {"nats-server": 1.5}))
        add(latency(present))
    add(filters())
    add(payload_rule())
    add(contexts())
    add(history())
    add(stopped_reader())
    add(connections())
    save(rows, {name: found.version for name, found in present.items()}, absent)


def fan_out(
    present: dict[str, peers.PeerServer], receivers: int, size: int, goals: dict[str, float | None]
) -> Iterator[Comparison]:
    """Compare deliveries per second with those of each peer."""
    case = f"{receivers:,} receivers, {_size(size)}"
    with ExitStack() as stack:
        ours, wire = _ours(stack, receivers, size=size)
        for name, goal in goals.items():
            if name not in present:
                continue
            server = present[name]
            with Load(
                ("127.0.0.1", server.port),
                PEERS[name][1](server.port, size, wire),
                clients=receivers,
                senders=SENDERS,
            ) as load:
                row = _compare(case, f"of {name}", goal, ours, Side(load, server))
                yield replace(row, peer=True)


def latency(present: dict[str, peers.PeerServer]) -> Iterator[Comparison]:
    """Compare the time to the last of 100 receivers at 1,000 envelopes a second."""
    if "Node ws" not in present:
        return
    server = present["Node ws"]
    with ExitStack() as stack:
        ours, wire = _ours(stack, 100)
        theirs = stack.enter_context(
            Load(
                ("127.0.0.1", server.port),
                peers.WebSocketWire(server.port, wire),
                clients=100,
                senders=SENDERS,
            )
        )
        sides = {"mcpp": ours.load, "Node ws": theirs}
        runs: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for load in sides.values():
            load.measure_latency(rate=1_000, seconds=WARM_UP)
        for _ in range(ROUNDS):
            for name, load in sides.items():
                found = load.measure_latency(rate=1_000, seconds=2 * SECONDS)
                runs[name].append((_quantile(found, 0.5), _quantile(found, 0.99)))
    case = "100 receivers, latency of the last"
    for which, label in ((0, "p50"), (1, "p99")):
        ours_ms = [each[which] * 1000 for each in runs["mcpp"]]
        theirs_ms = [each[which] * 1000 for each in runs["Node ws"]]
        yield Comparison(
            case, f"{label} of Node ws", 1.0, ours_ms, theirs_ms, unit="ms", at_most=True
        )
    p50, p99 = ([each[which] * 1000 for each in runs["mcpp"]] for which in (0, 1))
    yield Comparison(case, "p99 of p50", 3.0, p99, p50, unit="ms", at_most=True)


def filters() -> Iterator[Comparison]:
    """Compare receivers that filter by context with receivers that filter nothing."""
    for count, goal in ((5, 0.8), (100, 0.4)):
        # Different filters that pass the same envelopes, so that deliveries are comparable.
        texts = [
            json.dumps({"any": [{"type": "reasoning"}, {"context": f"other-{i}"}]})
            for i in range(count)
        ]
        with ExitStack() as stack:
            filtered, _ = _ours(stack, 100, filters=texts)
            plain, _ = _ours(stack, 100)
            case = f"100 receivers, {count} different filters"
            yield _compare(case, "of no filter", goal, filtered, plain)


def payload_rule() -> Iterator[Comparison]:
    """Compare envelopes whose payload a capability reads with those that need only their kind."""
    params: dict[str, Any] = {"name": "read_file", "arguments": {"path": "notes.md"}}
    call = {"method": "tools/call", "params": params}
    with ExitStack() as stack:
        read, _ = _ours(stack, 100, kind="mcp/request:tools/call:read_file", payload=call)
        plain, _ = _ours(stack, 100)
        yield _compare("100 receivers, a rule reads the payload", "of chat", None, read, plain)


def contexts() -> Iterator[Comparison]:
    """Compare a tree of 10,000 contexts, eight deep, and smaller ones with a single context."""
    for count, goal in ((10, None), (1_000, None), (10_000, 0.9)):
        with ExitStack() as stack:
            many, _ = _ours(stack, 10, size=440, contexts=_tree(count))
            one, _ = _ours(stack, 10, size=440)
            # The first pass creates the contexts.
            many.load.measure_throughput(window=WINDOW, warm_up=0, seconds=WARM_UP + count / 5_000)
            case = f"10 receivers, {count:,} live contexts"
            yield _compare(case, "of one context", goal, many, one)


def history() -> Iterator[Comparison]:
    """Compare a history of 100,000 envelopes, full, with one of 1,000."""
    with ExitStack() as stack:
        limits = {"history_messages": 100_000, "history_bytes": 1 << 28}
        long, _ = _ours(stack, 10, limits=limits)
        short, _ = _ours(stack, 10, limits={"history_messages": 1_000})
        while long.load.sent < 100_000:
            _flood(long)
        yield _compare("10 receivers, history of 100,000", "of 1,000", 0.9, long, short)


def stopped_reader() -> Iterator[Comparison]:
    """Compare deliveries to the others while one of 100 receivers has stopped reading."""
    with ExitStack() as stack:
        # Counted by marks, since the others also receive the presence of the closed connection.
        plain, _ = _ours(stack, 100, marked=True)
        ratios: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            # A new gateway each time, since a stopped reader is closed soon.
            with ExitStack() as inner:
                stopped, _ = _ours(inner, 100, deaf=1, marked=True)
                ratios[0].append(_flood(stopped)[0] / 99)
                ratios[1].append(_flood(plain)[0] / 100)
        yield Comparison("100 receivers, one stops reading", "of all reading", 0.95, *ratios)


def connections() -> Iterator[Comparison]:
    """Measure the memory of an idle connection and the time for a thousand to join at once."""
    allow_many_connections()
    each, seconds = asyncio.run(idle.measure())
    case = f"{idle.CONNECTIONS:,} idle connections"
    yield Comparison(case, "KiB each", 10, [each / 1024], [1.0], unit="KiB", at_most=True)
    case = f"{idle.AT_ONCE:,} joining at once"
    yield Comparison(case, "seconds", 3, [seconds], [1.0], unit="s", at_most=True)


# --- private ------------------------------------------------------------------------------------


def _start(
    stack: ExitStack, start: Callable[[], AbstractContextManager[peers.PeerServer]]
) -> peers.PeerServer | None:
    try:
        return stack.enter_context(start())
    except peers.PeerUnavailableError as error:
        print(error)
        return None


def _ours(
    stack: ExitStack,
    receivers: int,
    *,
    limits: Mapping[str, float] | None = None,
    deaf: int = 0,
    contexts: Sequence[Context] = ONE_CONTEXT,
    **options: Any,
) -> tuple[Side, GatewayWire]:
    """Start a gateway and connect a load to it."""
    running = stack.enter_context(gateway(receivers, {**HIGH, **(limits or {})}, peers.SERVER_CORE))
    wire = wire_to(running, receivers, SENDERS, contexts=contexts, **options)
    address = ("127.0.0.1", running.port)
    load = Load(address, wire, clients=receivers, senders=SENDERS, stalled=deaf)
    stack.enter_context(load)
    return Side(
        load, peers.PeerServer(metadata.version("mcpp-pods"), running.port, running.pid)
    ), wire


def _compare(case: str, against: str, goal: float | None, ours: Side, theirs: Side) -> Comparison:
    mine: list[float] = []
    others: list[float] = []
    bound = False
    for turn in range(ROUNDS):
        # Alternate the order, so that neither side benefits from it.
        for side, rates in ((ours, mine), (theirs, others))[:: 1 if turn % 2 else -1]:
            rate, busy = _flood(side)
            rates.append(rate)
            bound = bound or busy > CLIENT_BOUND
    return Comparison(case, against, goal, mine, others, note="clients busy" if bound else "")


def _flood(side: Side) -> tuple[float, float]:
    found = side.load.measure_throughput(window=WINDOW, warm_up=WARM_UP, seconds=SECONDS)
    return found.rate, found.client_busy


def _tree(count: int) -> list[Context]:
    """Return contexts in chains, eight deep, the parents first."""
    return [
        Context(
            id=f"context-{n:05d}",
            type="reasoning",
            parent=f"context-{n - 1:05d}" if n % 8 else None,
        )
        for n in range(count)
    ]


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _size(size: int) -> str:
    return f"{size} B" if size < 1_000 else f"{size // 1_000} kB"
