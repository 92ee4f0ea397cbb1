"""All participants see the same log, despite cut connections and slow readers."""

import random

import anyio
import pytest

from mcpp.client.connection import Options
from tests.interaction.conftest import AnyPod

pytestmark = pytest.mark.anyio

MESSAGES = 30
BUFFERS = {"ample": 1024, "small": 16, "tiny": 4}


@pytest.mark.rule("P-05", "P-08", "P-11")
@pytest.mark.parametrize(
    "limits", [{"messages_per_second": 0, "context_messages_per_second": 0}], ids=["unlimited"]
)
@pytest.mark.parametrize("seed", [1, 2])
async def test_all_see_one_order_and_nothing_twice_or_never(harness: AnyPod, seed: int) -> None:
    chance = random.Random(seed)
    seen: dict[str, list[str]] = {name: [] for name in BUFFERS}
    sent: set[str] = set()
    here = 0
    all_here, all_seen = anyio.Event(), anyio.Event()

    async def take_part(name: str) -> None:
        nonlocal here
        options = Options(buffer_messages=BUFFERS[name], backoff=lambda attempt: 0.0)
        async with harness.connect(name, own=True, options=options) as pod:
            here += 1
            if here == len(BUFFERS):
                all_here.set()
            await all_here.wait()

            async def talk() -> None:
                for _ in range(MESSAGES):
                    sent.add((await pod.send("chat", wait=chance.random() < 0.5)).id)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(talk)
                async for message in pod:
                    if message.kind == "chat":
                        seen[name].append(message.id)
                        if chance.random() < 0.1:
                            harness.cut(chance.choice(list(BUFFERS)))
                    if len(seen[name]) == MESSAGES * len(BUFFERS):
                        break
            if all(len(ids) == MESSAGES * len(BUFFERS) for ids in seen.values()):
                all_seen.set()
            await all_seen.wait()

    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for name in BUFFERS:
                tasks.start_soon(take_part, name)
    assert set(seen["ample"]) == sent
    assert seen["ample"] == seen["small"] == seen["tiny"]
