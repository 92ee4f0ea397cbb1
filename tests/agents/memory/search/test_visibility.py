"""What is not visible changes nothing: items of others, forgotten ones and superseded ones."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mcpp_agents.memory import MemoryStore, Principal
from mcpp_agents.memory.pack import ContextPack
from tests.agents.memory.conftest import ManualClock

np = pytest.importorskip("numpy")


class Hashed:
    """An embedder that adds up a random vector for each word."""

    model = "hashed"
    lexical_share = 0.6

    def embed(self, texts: Any) -> Any:
        sums = [
            sum(
                np.random.default_rng(crc32(word.encode())).standard_normal(12) + 0.4
                for word in ["", *text.lower().split()]
            )
            for text in texts
        ]
        vectors = np.array(sums, np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


class StoredItem(NamedTuple):
    """An item to store, and what becomes of it."""

    fate: str
    words: list[str]
    kind: str
    source: str | None


WORDS = ("apple", "pie", "salary", "wing", "flow")
FATES = ("kept", "kept", "forgotten", "superseded", "superseded and restored", "foreign")
ITEMS = st.lists(
    st.builds(
        StoredItem,
        st.sampled_from(FATES),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=6),
        st.sampled_from(["note", "message", "task"]),
        st.sampled_from([None, "D1:1", "D2:1"]),
    ),
    min_size=3,
    max_size=10,
)
GOALS = ("apple pie", "wing", "salary flow zebra")
VISIBLE = ("kept", "superseded and restored")


@pytest.fixture
def store(location: str, clock: ManualClock) -> Iterator[MemoryStore]:
    with MemoryStore.open(location, embedder=Hashed(), clock=clock) as opened:
        yield opened


numbers = itertools.count()


def remember(store: MemoryStore, items: list[StoredItem]) -> None:
    """Store items in order, and then hide those that are not to be visible."""
    foreign = store.acting_as(Principal(f"other {next(numbers)}"))
    ids = [
        (foreign if item.fate == "foreign" else store)
        .remember("Item", " ".join(item.words), item.kind, source=item.source)
        .id
        for item in items
    ]
    store.context(GOALS[0])  # what is cached has to follow
    for id, item in zip(ids, items, strict=True):
        if item.fate == "forgotten":
            store.forget(id)
        elif item.fate.startswith("superseded"):
            related = [f"supersedes:{id}"]
            later = store.remember("Later", "something else", "fact", related_to=related)
            if item.fate == "superseded and restored":
                store.context(GOALS[0])
                store.forget(later.id)


def shown(pack: ContextPack) -> list[Any]:
    """Return what a pack says, without what differs between two copies of an item."""
    return [
        (
            item.content,
            item.score,
            item.reason,
            item.metadata.get("words"),
            item.metadata.get("cosine"),
        )
        for item in pack.items
    ]


@pytest.mark.rule("M-05", "M-12", "M-28")
@given(ITEMS)
@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_what_is_not_visible_changes_neither_packs_nor_scores(
    store: MemoryStore, items: list[StoredItem]
) -> None:
    """A caller with hidden items among its items has the packs of one without them."""
    plain, mixed = (store.acting_as(Principal(f"caller {next(numbers)}")) for _ in range(2))
    remember(plain, [item._replace(fate="kept") for item in items if item.fate in VISIBLE])
    for item in items:
        if item.fate == "superseded":
            plain.remember("Later", "something else", "fact")
    remember(mixed, items)
    store.embed_pending()
    for goal in GOALS:
        for layer in ("recall", "wake"):
            packs = [each.context(goal, layer=layer, limit=4) for each in (plain, mixed)]
            assert shown(packs[1]) == shown(packs[0])
