"""Attack programs against a gateway, run as processes: `python -m … NAME PORT OPTIONS`.

Each prints `started` once it attacks, and goes on until it is killed.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any
from urllib.parse import quote

from tests.attacks.gateway.process import connect, envelope
from tests.gateway.harness import text as envelope_text
from tests.gateway.sockets import RawClient, raw_frame


def started() -> None:
    sys.stdout.write("started\n")
    sys.stdout.flush()


async def discard(client: RawClient) -> None:
    while await client.reader.read(1 << 16):
        pass


async def pace(rate: float) -> Any:
    """Yield numbers at a rate, several at once where the event loop is late."""
    began = time.monotonic()
    for number in count():
        ahead = began + number / rate - time.monotonic()
        if ahead > 0.002:
            await asyncio.sleep(ahead)
        yield number


def costly_filter(number: int, parts: int = 63) -> str:
    """Return a filter of 64 globs that all begin and end as the attack's kinds do."""
    globs = [{"kind": f"x{'y' * (i % 20)}*{number}-{i}z"} for i in range(parts)]
    return quote(json.dumps({"any": globs}))


async def costly_filters(port: int, participants: int = 20, rate: float = 200) -> None:
    """Listen with filters of 64 different parts each, and send kinds that nobody has seen."""

    async def one(index: int) -> None:
        client = await connect(port, f"p{index}", f"filter={costly_filter(index)}")
        asyncio.create_task(discard(client))  # noqa: RUF006
        await everyone.wait()
        async for number in pace(rate):
            kind = f"x{'y' * 20}-{index}-{number}z"
            client.writer.write(envelope(f"p{index}", f"m-{index}-{number}", kind))
            await client.writer.drain()
            if not index and not number:
                started()

    everyone = asyncio.Barrier(participants)
    await asyncio.gather(*map(one, range(participants)))


async def payload_rules(port: int, size: int = 900_000, rate: float = 200) -> None:
    """Send large payloads that a capability's pattern reads."""
    client = await connect(port, "p0")
    asyncio.create_task(discard(client))  # noqa: RUF006
    payload = {"a": [{"k": i, "v": "x"} for i in range(size // 20)]}
    pattern = envelope_text("m-0000", "p0", "x", payload)
    async for number in pace(rate):
        client.writer.write(raw_frame(0x81, pattern.replace(b"m-0000", b"m-%04d" % number)))
        await client.writer.drain()
        if not number:
            started()


async def garbage(port: int, participants: int = 20, size: int = 2000) -> None:
    """Send texts that are no envelopes, and pings, as fast as they are read."""

    async def one(index: int) -> None:
        client = await connect(port, f"p{index}")
        asyncio.create_task(discard(client))  # noqa: RUF006
        text = raw_frame(0x81, b'{"id":"x","a":[' + b"1," * (size // 2) + b"1]}")
        while True:
            client.writer.write((text + raw_frame(0x89, b"ping")) * 20)
            await client.writer.drain()

    tasks = [asyncio.create_task(one(index)) for index in range(participants)]
    await asyncio.sleep(0.2)
    started()
    await asyncio.gather(*tasks)


async def rejoin(port: int, participants: int = 20) -> None:
    """Join and leave again and again."""

    async def one(index: int) -> None:
        while True:
            try:
                client = await connect(port, f"p{index}")
                await client.frame()
                client.writer.close()
                await client.writer.wait_closed()
            except ConnectionError:
                await asyncio.sleep(0.05)

    tasks = [asyncio.create_task(one(index)) for index in range(participants)]
    started()
    await asyncio.gather(*tasks)


async def resume_with_filter(port: int, participants: int = 20) -> None:
    """Fill the history with new kinds, then replay it under costly filters, again and again."""
    writer = await connect(port, "p0")
    asyncio.create_task(discard(writer))  # noqa: RUF006
    async for number in pace(2000):
        kind = f"x{'y' * 20}-0-{number}z"
        writer.writer.write(envelope("p0", f"m-{number}", kind))
        if number == 5000:
            break
    await writer.writer.drain()

    async def one(index: int) -> None:
        while True:
            try:
                query = f"last=10000&filter={costly_filter(index)}"
                client = await connect(port, f"p{index}", query)
                await client.frame()
                client.writer.close()
                await client.writer.wait_closed()
            except (ConnectionError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(one(index)) for index in range(1, participants)]
    started()
    await asyncio.gather(*tasks)


PROGRAMS: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    each.__name__: each
    for each in (costly_filters, payload_rules, garbage, rejoin, resume_with_filter)
}

if __name__ == "__main__":
    asyncio.run(PROGRAMS[sys.argv[1]](int(sys.argv[2]), **json.loads(sys.argv[3])))
