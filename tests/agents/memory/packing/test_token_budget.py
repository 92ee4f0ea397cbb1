"""The Markdown of a pack keeps within its tokens, by value per token."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp.tokens import estimate
from mcpp_agents.memory import MemoryDraft, MemoryStore
from mcpp_agents.memory.errors import InvalidMemory
from mcpp_agents.memory.pack import PackItem, PackSection, Quality, RelatedItem
from mcpp_agents.memory.packing.passages import best_passages
from mcpp_agents.memory.packing.token_budget import render_within
from mcpp_agents.memory.vocabulary import KINDS

KINDS_OF = {facet: kind for kind, facet in KINDS.items()}
FILLER = "Nothing of interest was said in this sentence about the weather. " * 12


@pytest.fixture
def filled(store: MemoryStore) -> MemoryStore:
    drafts = [
        MemoryDraft(
            title=f"Rotation of key {number}",
            content=f"{FILLER}Rotation happens at {number} o'clock. {FILLER}",
            kind="decision",
        )
        for number in range(20)
    ]
    drafts.append(MemoryDraft(title="Short rotation", content="Rotation is daily.", kind="fact"))
    store.remember_many(drafts)
    return store


@pytest.mark.rule("M-45")
@pytest.mark.parametrize("budget", [200, 500, 1000, 4000, 9000])
def test_the_markdown_keeps_within_its_budget(filled: MemoryStore, budget: int) -> None:
    pack = filled.context("key rotation", markdown_token_budget=budget)
    assert estimate(pack.markdown) <= budget
    assert pack.total_items == 21  # the items themselves are not affected
    if budget > 500:
        assert "Rotation is daily." in pack.markdown


@pytest.mark.rule("M-45")
def test_more_tokens_show_more_and_the_note_says_what_is_missing(filled: MemoryStore) -> None:
    small, large, all_of_it = (
        filled.context("key rotation", markdown_token_budget=budget).markdown
        for budget in (600, 3000, 100_000)
    )
    assert small.count("### ") < large.count("### ") == 21 == all_of_it.count("### ")
    assert "Within 600 tokens: " in small
    assert "left out" in small
    assert "Within" not in all_of_it
    # Passages, not beginnings.
    assert large.count("o'clock") > 5
    assert large.count("the weather") < all_of_it.count("the weather")


@pytest.mark.rule("M-45")
@pytest.mark.parametrize(("budget", "least"), [(200, 1), (400, 3), (600, 6)])
def test_sections_without_items_take_no_room(store: MemoryStore, budget: int, least: int) -> None:
    for facet, kind in KINDS_OF.items():
        store.remember(f"Rotation of {facet}", f"{FILLER}Rotation happens.", kind)
    markdown = store.context("key rotation", markdown_token_budget=budget).markdown
    assert markdown.count("### ") >= least
    assert estimate(markdown) <= budget


TEXTS = st.text(max_size=300) | st.sampled_from(
    ["漢字" * 500, "a b. " * 300, "0 " * 400, "`[<@" * 99]
)
PACK_ITEMS = st.builds(
    PackItem,
    id=st.uuids().map(str),
    type=st.just("note"),
    name=TEXTS,
    content=TEXTS,
    score=st.sampled_from([0.0, 0.01, 0.5, 1.0]),
    facet=st.just("domain"),
    reason=TEXTS,
    source=st.none() | TEXTS,
    quality=st.builds(
        Quality,
        origin=st.sampled_from(["bus", "direct"]),
        source=st.none(),
        url=st.none(),
        created_at=st.just(""),
        updated_at=st.just(""),
        valid_at=st.none(),
        project_id=st.none(),
    ),
    metadata=st.just({}),
    related=st.lists(
        st.builds(
            RelatedItem,
            id=st.just("mem_1"),
            type=st.just("note"),
            name=TEXTS,
            relationship=st.just("supports"),
            direction=st.sampled_from(["incoming", "outgoing"]),
        ),
        max_size=3,
    ),
)


@pytest.mark.rule("M-45")
@settings(max_examples=60, deadline=None)
@given(st.lists(PACK_ITEMS, max_size=6), st.integers(200, 1500))
def test_any_texts_keep_within_the_budget(items: list[PackItem], budget: int) -> None:
    section = PackSection(facet="domain", title="Domain knowledge", items=items)
    hint = "Follow the sources; look closely at contradictions."
    markdown = render_within([section], hint, terms=["a", "漢字"], budget=budget)
    assert estimate(markdown) <= budget


@pytest.mark.rule("M-45")
def test_the_default_budget_is_4000(filled: MemoryStore) -> None:
    assert estimate(filled.context("key rotation").markdown) <= 4000


@pytest.mark.rule("M-45")
@pytest.mark.parametrize("budget", [199, 0, -5, float("nan")])
def test_a_budget_below_200_is_refused(filled: MemoryStore, budget: float) -> None:
    for compile in (filled.context, filled.synthesis_plan):
        with pytest.raises(InvalidMemory, match="markdown_token_budget must be at least 200"):
            compile("key rotation", markdown_token_budget=budget)


@pytest.mark.rule("M-45")
def test_the_text_of_the_best_item_comes_before_further_titles(filled: MemoryStore) -> None:
    pack = filled.context("key rotation", markdown_token_budget=300)
    best = max(pack.items, key=lambda item: item.score)
    assert f"### {best.name}\n" in pack.markdown
    assert f"Rotation happens at {best.name.split()[-1]} o'clock." in pack.markdown


@pytest.mark.rule("M-45")
def test_passages_are_the_sentences_about_the_goal() -> None:
    text = "First one. Tokens rotate daily. Second one. Keys are kept in a vault. Last one."
    assert best_passages(text, ["token", "vault"], 60) == (
        "… Tokens rotate daily. … Keys are kept in a vault. …"
    )
    assert best_passages(text, [], 1000) == text
    assert best_passages("", ["x"], 10) == ""
    assert best_passages("abcdefghij klm", ["klm"], 6) == "abcde…"


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=300), st.lists(st.text(max_size=8), max_size=4), st.integers(1, 200))
def test_passages_keep_within_their_length(text: str, terms: list[str], length: int) -> None:
    assert len(best_passages(text, terms, length)) <= length + 2
