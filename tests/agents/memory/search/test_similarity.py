"""Re-ranking by the relevance of similar texts."""

import pytest

from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.search.ranking import Relevance
from mcpp_agents.memory.search.similarity import rerank


def text(subject: str, words: int = 40) -> str:
    """Return a text whose words are specific to a subject."""
    return " ".join(f"{subject}{number}" for number in range(words))


def relevances(*fused: float) -> dict[int, Relevance]:
    return {seq: Relevance(each, each) for seq, each in enumerate(fused, 1)}


@pytest.mark.rule("M-29")
def test_of_two_equal_matches_the_one_similar_to_the_best_comes_first() -> None:
    texts = {1: text("wing"), 2: text("wing") + " more", 3: text("soup"), 4: text("wing") + " too"}
    moved = rerank(relevances(1.0, 0.9, 0.5, 0.5), texts)
    assert moved[4].fused > moved[3].fused
    assert max(each.fused for each in moved.values()) == pytest.approx(1.0)
    assert [each.words for each in moved.values()] == [1.0, 0.9, 0.5, 0.5]


@pytest.mark.rule("M-29")
def test_texts_with_few_words_are_not_compared() -> None:
    before = relevances(1.0, 0.9, 0.5)
    short = {seq: text("wing", 19) for seq in before}
    assert rerank(before, short) == before
    mixed = {1: text("wing"), 2: "A few words.", 3: text("wing")}
    assert rerank(before, mixed)[2] == before[2]


@pytest.mark.rule("M-29")
def test_a_text_among_relevant_ones_passes_one_among_irrelevant_ones() -> None:
    on, off = text("wing"), text("soup")
    texts = {1: off, 2: on, 3: on + " a", 4: on + " b", 5: off + " a", 6: off + " b"}
    moved = rerank(relevances(1.0, 0.95, 0.9, 0.9, 0.1, 0.1), texts)
    assert moved[2].fused > moved[1].fused
    assert moved[5].fused > 0.1 * moved[1].fused
    assert max(each.fused for each in moved.values()) == pytest.approx(1.0)


@pytest.mark.rule("M-29")
def test_forms_of_a_word_are_similar() -> None:
    stems = [f"{letter * 5}s" for letter in "bcdfghjklmnpqrstvwxz"]
    one, other = (" ".join(stem + end for stem in stems) for end in ("ing", "ed"))
    moved = rerank(relevances(1.0, 0.5, 0.5), {1: one, 2: other, 3: text("soup")})
    assert moved[2].fused > moved[3].fused


@pytest.mark.rule("M-29")
def test_without_similarity_the_order_is_unchanged() -> None:
    before = relevances(1.0, 0.95, 0.9, 0.0)
    different = {
        1: text("wing"),
        2: text("soup") + " cat",
        3: text("moon") + " cat",
        4: text("sea"),
    }
    moved = rerank(before, different)
    assert sorted(moved, key=lambda seq: -moved[seq].fused) == [1, 2, 3, 4]
    assert moved[1].fused == pytest.approx(1.0)


@pytest.mark.parametrize("texts", [{}, {1: text("wing")}, {1: "", 2: "\u4e2d\u6587"}])
def test_a_text_without_comparable_ones_is_unchanged(texts: dict[int, str]) -> None:
    moved = rerank(relevances(1.0, 0.5), texts)
    assert [each.fused for each in moved.values()] == pytest.approx([1.0, 0.5])
    assert rerank(relevances(0.0, 0.0), texts) == relevances(0.0, 0.0)


@pytest.mark.rule("M-29")
def test_similarity_orders_a_pack(store: MemoryStore) -> None:
    for name in ("One", "Two", "Three"):
        store.remember(name, f"zebra zebra {text('wing')}", "note")
    store.remember("Similar", f"zebra {text('wing')} tail", "note")
    store.remember("Other", f"zebra {text('soup')} tail", "note")
    assert [item.name for item in store.context("zebra").items][-2:] == ["Similar", "Other"]
    assert store.context("zebra").items[-1].score < store.context("zebra").items[-2].score


@pytest.mark.rule("M-29")
def test_turns_of_a_dialogue_are_not_ranked_by_similarity(store: MemoryStore) -> None:
    said = [f"zebra zebra {text('wing')}"] * 3 + [f"zebra {text(on)}" for on in ("wing", "soup")]
    for number, content in enumerate(said):
        store.remember(f"{number}", content, "message", source=f"D{number}:1")
    [*_, similar, other] = store.search("zebra")
    assert similar[1] == other[1]
