"""Packs while other programs write, on both engines."""

from collections.abc import Callable
from typing import Any

import pytest

from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.pack import ContextPack
from tests.agents.memory.conftest import ManualClock

np = pytest.importorskip("numpy")

# The reads of a pack, in the order in which it calls them.
STEPS = ("match", "nearest", "outline", "fetch", "newest", "evidence", "linked")


class Lengths:
    """An embedder whose vectors depend on the length of a text."""

    model = "lengths"
    lexical_share = 0.6

    def embed(self, texts: Any) -> Any:
        angles = np.array([len(text) / 100 for text in texts])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def interrupt(engine: Any, step: str, write: Callable[[], object]) -> list[str]:
    """Let a step of this engine be followed by a write; return the list of its calls."""
    original, calls = getattr(engine, step), []

    def interrupted(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        calls.append(step)
        write()
        return found

    setattr(engine, step, interrupted)
    return calls


def scores(pack: ContextPack) -> list[Any]:
    return [
        (item.name, item.score, item.reason, [other.name for other in item.related])
        for item in pack.items
    ]


@pytest.mark.rule("M-20")
@pytest.mark.parametrize("step", STEPS)
def test_a_pack_shows_one_state_whatever_others_write_meanwhile(
    location: str, clock: ManualClock, step: str
) -> None:
    def change() -> None:
        other.forget(stored.pop())
        other.remember(
            "Later", "apple pie, apple pie", "task", related_to=[f"supersedes:{stored.pop()}"]
        )
        other.remember("Doubt", "of it", related_to=[f"contradicts:{stored.pop()}"])
        other.embed_pending()

    with (
        MemoryStore.open(location, embedder=Lengths(), clock=clock) as store,
        MemoryStore.open(location, embedder=Lengths(), clock=clock) as other,
    ):
        stored = [
            other.remember(f"Item {n}", "apple " + "pie " * n, "message", source=f"D1:{n}").id
            for n in range(12)
        ]
        store.embed_pending()
        before = scores(store.context("apple pie", layer="wake", limit=8))
        calls = interrupt(store._engine, step, change)
        assert scores(store.context("apple pie", layer="wake", limit=8)) == before
        assert calls
        delattr(store._engine, step)
        assert scores(store.context("apple pie", layer="wake", limit=8)) != before
