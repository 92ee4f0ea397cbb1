"""The SDK compared with a bare `websockets` client and `json.loads`, on the same gateway.

    python -m benchmarks sdk

Both alternate in one run, so that load on the machine affects both; the results are medians of the
paired ratios. Goals: receive rate at least 1 ×, round trip at most 1.3 ×.
"""

import asyncio
import json
import os
import statistics
import time
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as connect_bare

import mcpp
from benchmarks._gateway import gateway, token

ROUNDS: Final = 7
ROUND_TRIPS: Final = 1000
RECEIVED: Final = 20_000
# Every connection uses another participant: the gateway limits how soon one may rejoin (G-49).
CONNECTIONS: Final = 1 + 2 * 2 * ROUNDS
TEXT: Final = "x" * 180  # about 400 bytes an envelope


def bare(url: str, index: int, **query: Any) -> Any:
    """Return a bare connection."""
    extra = "".join(f"&{name}={value}" for name, value in query.items())
    return connect_bare(
        url + extra,
        additional_headers={"Authorization": f"Bearer {token(index)}"},
        compression=None,
        max_queue=None,
    )


async def bare_send(connection: ClientConnection, name: str) -> None:
    """Send an envelope and wait for its echo, without the SDK."""
    id = str(uuid.uuid4())
    envelope = {
        "protocol": "mcpp/v0.1",
        "id": id,
        "ts": datetime.now(UTC).isoformat(),
        "from": name,
        "kind": "chat",
        "payload": {"text": TEXT},
    }
    await connection.send(json.dumps(envelope))
    while json.loads(await connection.recv()).get("id") != id:
        pass


async def bare_round_trip(url: str, index: int) -> float:
    """Return the seconds that one echo takes."""
    name = f"p{index}"
    async with bare(url, index) as connection:
        for _ in range(100):
            await bare_send(connection, name)
        start = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            await bare_send(connection, name)
        return (time.perf_counter() - start) / ROUND_TRIPS


async def our_round_trip(url: str, index: int) -> float:
    """Return the seconds that one echo takes."""
    async with mcpp.connect(url, token=token(index)) as pod:
        for _ in range(100):
            await pod.send("chat", {"text": TEXT})
        start = time.perf_counter()
        for _ in range(ROUND_TRIPS):
            await pod.send("chat", {"text": TEXT})
        return (time.perf_counter() - start) / ROUND_TRIPS


async def bare_receive(url: str, index: int) -> float:
    """Return the envelopes received per second."""
    async with bare(url, index, last=RECEIVED) as connection:
        json.loads(await connection.recv())
        start = time.perf_counter()
        for _ in range(RECEIVED):
            json.loads(await connection.recv())
        return RECEIVED / (time.perf_counter() - start)


async def our_receive(url: str, index: int) -> float:
    """Return the envelopes received per second, with decoded payloads as in the bare client."""
    async with mcpp.connect(url, token=token(index), last=RECEIVED) as pod:
        start = time.perf_counter()
        for _ in range(RECEIVED):
            (await anext(pod)).payload  # noqa: B018
        return RECEIVED / (time.perf_counter() - start)


async def fill(url: str) -> None:
    """Fill the log."""
    async with mcpp.connect(url, token=token(0)) as pod:
        for _ in range(RECEIVED):
            await pod.send("chat", {"text": TEXT}, wait=False)


async def measure(url: str) -> None:
    """Measure both in turn and print the medians."""
    await fill(url)
    indices = iter(range(1, CONNECTIONS))
    for title, unit, ours, theirs in (
        ("receive rate", "a second", our_receive, bare_receive),
        ("round trip", "µs", our_round_trip, bare_round_trip),
    ):
        pairs = [
            (await ours(url, next(indices)), await theirs(url, next(indices)))
            for _ in range(ROUNDS)
        ]
        scale = 1e6 if unit == "µs" else 1
        mine, other = (statistics.median(side) * scale for side in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        print(f"{title}: mcpp {mine:,.0f} {unit}, bare websockets {other:,.0f}; ratio {ratio:.2f}")


def run() -> None:
    """Run everything against a gateway in a separate process, on another core."""
    limits = {
        "messages_per_second": 0,
        "context_messages_per_second": 0,
        "history_messages": 2 * RECEIVED,
    }
    with gateway(CONNECTIONS, limits) as running:
        cores = os.sched_getaffinity(0)
        if len(cores) > 1:
            os.sched_setaffinity(0, cores - {0})
        try:
            asyncio.run(measure(f"ws://127.0.0.1:{running.port}/ws?pod=bench"))
        finally:
            os.sched_setaffinity(0, cores)


if __name__ == "__main__":
    run()
