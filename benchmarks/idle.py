"""Memory of an idle connection, and the time for a thousand to join at once."""

import asyncio
from collections.abc import Callable
from time import perf_counter

from benchmarks._gateway import gateway, join
from mcpp_gateway.process import allow_many_connections

CONNECTIONS = 5_000
AT_ONCE = 1_000


async def measure() -> tuple[float, float]:
    """Return the bytes per connection, and the seconds for a thousand to join."""
    with gateway(CONNECTIONS, {"history_messages": 100}) as running:
        # The first connections fill pools and caches once; exclude that.
        warm = await join(running, range(50))
        before = running.resident_bytes()
        clients = []
        for first in range(50, CONNECTIONS, 100):
            clients += await join(running, range(first, min(first + 100, CONNECTIONS)))
        await settled(running.resident_bytes)
        lost = [client for client in clients if client.transport.is_closing()]
        assert not lost, f"{len(lost)} connections were lost"
        each = (running.resident_bytes() - before) / len(clients)
        for client in (*warm, *clients):
            client.transport.abort()
    with gateway(AT_ONCE, {}) as running:
        began = perf_counter()
        await join(running, range(AT_ONCE))
        return each, perf_counter() - began


async def settled(figure: Callable[[], int]) -> None:
    """Wait until a figure stops falling."""
    last = figure()
    while True:
        await asyncio.sleep(1)
        if (now := figure()) >= last:
            return
        last = now


def run() -> None:
    allow_many_connections()
    each, seconds = asyncio.run(measure())
    print(f"{CONNECTIONS:,} idle connections: {each / 1024:.1f} KiB each (goal: at most 10)")
    print(f"{AT_ONCE:,} concurrent joins: {seconds:.2f} s (goal: under 3)")
