"""Turns of dialogues: who spoke, and times."""

from datetime import date

import pytest

from mcpp_agents.memory import MemoryDraft, MemoryStore
from mcpp_agents.memory.access import OWNER, view_of
from mcpp_agents.memory.search.dialogue import adjust, told_words
from mcpp_agents.memory.search.ranking import Relevance, fuse, turn_relevance
from mcpp_agents.memory.search.terms import parse
from mcpp_agents.memory.search.times import asks_when, date_terms, mentioned_days, tells_when
from mcpp_agents.memory.storage.engine import Closeness, Matches, Similarity


def tell(store: MemoryStore, *turns: str, valid_at: str | None = None) -> list[str]:
    drafts = [
        MemoryDraft(
            title=turn.partition(":")[0],
            content=turn,
            kind="message",
            source=f"D{place // 3}:{place}",
            valid_at=valid_at,
        )
        for place, turn in enumerate(turns)
    ]
    return [answer.id for answer in store.remember_many(drafts)]


def best(store: MemoryStore, goal: str) -> list[str]:
    return [id for id, _ in store.search(goal)]


@pytest.mark.rule("M-50")
def test_a_question_about_a_person_prefers_their_own_turns(store: MemoryStore) -> None:
    ids = tell(
        store,
        "Bob: Wow, Ann, a kayak! A kayak is great, Ann.",
        "Bob: What will you do now?",
        "Bob: See you.",
        "Ann: I found a kayak at the market, for nearly nothing, would you believe it.",
        "Bob: Hm.",
        "Bob: So.",
    )
    assert best(store, "Where did Ann find the kayak?")[0] == ids[3]
    assert best(store, "kayak")[0] == ids[0]


def test_turns_of_which_none_is_relevant_stay_as_they_are(file_store: MemoryStore) -> None:
    file_store.remember("Ann", "Hm.", "message")
    turn = next(iter(file_store._engine.fetch([1], view_of(OWNER)).values()))
    relevances = {turn.seq: Relevance(fused=0.4, words=0.0, cosine=0.2, as_turn=0.0)}
    assert adjust(relevances, "goal", parse("goal"), [turn]) == relevances


@pytest.mark.rule("M-50")
def test_turns_that_tell_something_come_before_questions_and_exclamations(
    store: MemoryStore,
) -> None:
    ids = tell(
        store,
        "Bob: A kayak?",
        "Bob: Hm, well, I see, and then, you know, so it goes.",
        "Bob: Wow, a kayak!",
        "Ann: My aunt in Bergen gave me her old kayak, because she had no room for it any more.",
    )
    assert best(store, "Whose kayak was it?")[0] == ids[3]


@pytest.mark.rule("M-50")
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("I've moved. Have you? It's nice!", 4),
        ("Really?!", 0),
        ("我搬家了。你呢？", 2),
        ("", 0),
        ("?" * 10_000, 0),
    ],
)
def test_words_in_questions_tell_nothing(text: str, words: int) -> None:
    assert told_words(text) == words


@pytest.mark.rule("M-50")
def test_a_question_for_a_time_prefers_turns_that_tell_one(store: MemoryStore) -> None:
    ids = tell(
        store,
        "Ann: We went to that concert last Friday with my cousins.",
        "Ann: Hm.",
        "Ann: Well.",
        "Ann: The concert was loud for all of my cousins.",
    )
    assert best(store, "When was the concert?")[0] == ids[0]
    assert best(store, "How was the concert?")[0] == ids[3]


@pytest.mark.rule("M-50")
def test_items_are_found_by_the_days_that_they_mean(store: MemoryStore) -> None:
    tell(store, "Ann: Nothing new.", valid_at="2023-08-02")
    [id] = tell(store, "Ann: I flew home three weeks ago.", valid_at="2023-06-10T09:00:00Z")
    assert best(store, "What happened in May 2023?")[0] == id
    assert best(store, "What was on 2023-06-10?")[0] == id


@pytest.mark.rule("M-50")
@pytest.mark.parametrize(
    ("text", "days"),
    [
        ("I saw it yesterday", [date(2023, 5, 19)]),
        ("two weeks ago, or a few days ago", [date(2023, 5, 6), date(2023, 5, 17)]),
        ("last Tuesday", [date(2023, 5, 16)]),
        ("last Saturday", [date(2023, 5, 13)]),
        ("next Monday", [date(2023, 5, 22)]),
        ("on 7 July 2022", [date(2022, 7, 7)]),
        ("July 7th, 2022", [date(2022, 7, 7)]),
        ("2024-02-29 and 2024-02-31", [date(2024, 2, 29)]),
        ("I may go, 99 years ago", [date(1924, 6, 13)]),
        ("nothing", []),
    ],
)
def test_times_are_resolved_against_the_text_s_own(text: str, days: list[date]) -> None:
    assert mentioned_days(text, date(2023, 5, 20)) == days  # a Saturday


@pytest.mark.rule("M-50")
def test_times_are_recognised() -> None:
    assert asks_when("When did it happen?")
    assert asks_when("In which year did she move?")
    assert not asks_when("Who moved?")
    assert tells_when("It was last summer.")
    assert not tells_when("It was nice.")
    assert "may" in date_terms("yesterday", 1_684_540_800.0)
    assert date_terms("999 years ago " * 400, 0.0)


@pytest.mark.rule("M-50")
def test_a_turn_is_ranked_by_what_sets_it_apart_and_a_text_by_its_cosine() -> None:
    close = {1: Closeness(Similarity(0.6, 0.0)), 2: Closeness(Similarity(0.5, 0.4))}
    found = fuse(Matches({}, {}, (), {}), close, lexical_share=0.5)
    assert found[1].fused > found[2].fused
    assert turn_relevance(found[1]) < turn_relevance(found[2])
    by_words = fuse(Matches({3: 1.0}, {"x": {3}}, (), {"x": 1.0}, visible=3), None, 1.0)
    assert turn_relevance(by_words[3]) == by_words[3].fused == 1.0


@pytest.mark.rule("M-51")
@pytest.mark.parametrize(("rarity", "best"), [(0.1, 2), (6.0, 1)])
def test_a_match_of_common_words_gives_way_to_the_meaning(rarity: float, best: int) -> None:
    matches = Matches({1: rarity}, {"ann": {1}}, (), {"ann": rarity}, visible=100)
    close = {1: Closeness(Similarity(0.2, 0.2)), 2: Closeness(Similarity(0.6, 0.6))}
    found = fuse(matches, close, lexical_share=0.6)
    assert max(found, key=lambda seq: found[seq].fused) == best
