"""Turns of dialogues: who spoke, and times."""

from datetime import date

import pytest

from mcpp_agents.memory import MemoryDraft, MemoryStore
from mcpp_agents.memory.access import OWNER, view_of
from mcpp_agents.memory.search.dialogue import adjust, told_words
from mcpp_agents.memory.search.ranking import Relevance, fuse, turn_relevance
from mcpp_agents.memory.search.terms import parse
from mcpp_agents.memory.search.times import Time, asks_when, meant_times, tells_when, time_terms
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
    "goal",
    [
        "What did Ann do on 2 May 2023?",
        "What did Ann do on May 2, 2023?",
        "What did Ann do on 2023-05-02?",
        "What did Ann do on 2.5.2023?",
        "what did ann do on the 2nd of may 2023",
        "What did Ann do on May 2nd?",
    ],
)
def test_a_date_in_a_goal_is_the_day_of_the_items(store: MemoryStore, goal: str) -> None:
    tell(store, "Ann: I wrote 2 letters today.", valid_at="2022-05-01")
    [id] = tell(store, "Ann: I baked bread today.", valid_at="2023-05-02T18:00:00Z")
    tell(store, "Ann: I sold 2 pianos today.", valid_at="2023-05-05")
    assert best(store, goal)[0] == id


@pytest.mark.rule("M-25", "M-50")
def test_a_reason_has_the_date_as_the_goal_spells_it(store: MemoryStore) -> None:
    tell(store, "Ann: I baked bread yesterday.", valid_at="2023-05-03")
    [found] = store.context("What was on the 2nd of  May 2023?").items
    assert found.reason.startswith("matches '2nd of May 2023', ")
    plan = store.synthesis_plan("bread on 2023-05-02")
    assert not any("may" in gap for gap in plan.gaps)


@pytest.mark.rule("M-50")
def test_turns_of_another_time_than_the_named_one_are_moved_down(file_store: MemoryStore) -> None:
    text = "Ann: I baked a loaf of bread and some rolls, and then I was on the phone for an hour."
    tell(file_store, text, valid_at="2023-05-05")
    tell(file_store, text, valid_at="2023-05-02")
    other, turn = file_store._engine.fetch([1, 2], view_of(OWNER)).values()
    relevances = {
        other.seq: Relevance(fused=0.8, words=0.0, cosine=0.8, as_turn=0.8),
        turn.seq: Relevance(fused=0.7, words=0.0, cosine=0.7, as_turn=0.7),
    }
    for goal, first in (("on May 2nd", turn), ("in May", other), ("in 2023", other)):
        found = adjust(relevances, goal, parse(goal), [other, turn])
        assert max(found, key=lambda seq: found[seq].fused) == first.seq


@pytest.mark.rule("M-50")
def test_days_are_counted_in_the_item_s_own_time(store: MemoryStore) -> None:
    tell(store, "Ann: Nothing new.", valid_at="2023-05-14")
    [id] = tell(store, "Ann: I was there yesterday.", valid_at="2023-05-16T00:30:00+10:00")
    tell(store, "Ann: Nothing at all.", valid_at="2023-05-13")
    for day in ("2023-05-15", "2023-05-16"):
        assert best(store, day)[0] == id
    assert best(store, "2023-05-14")[0] != id


WEDNESDAY = date(2023, 5, 17)


@pytest.mark.rule("M-50")
@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("I saw it yesterday", "2023-05-16"),
        ("two weeks ago, or a few days ago", "2023-05-03 2023-05-14"),
        ("a fortnight ago", "2023-05-03"),
        ("in two days", "2023-05-19"),
        ("for the first time in two years", ""),
        ("three weeks from now", "2023-06-07"),
        ("last Tuesday", "2023-05-16"),
        ("last Wednesday", "2023-05-10"),
        ("this Wednesday and next Wednesday", "2023-05-24"),
        ("next Monday", "2023-05-22"),
        ("on Monday", "2023-05-15 2023-05-22"),
        ("two Sundays ago", "2023-05-07"),
        ("the Sunday before last", "2023-05-07"),
        ("last weekend", "2023-05-13 2023-05-14"),
        ("the weekend before last", "2023-05-06 2023-05-07"),
        ("last month", "2023-04"),
        ("half a year ago", "2022-11"),
        ("last year, and 99 years ago", "1924 2022"),
        ("9999 years ago, 999 years ago", "1024"),
        ("on 7 July 2022", "2022-07-07"),
        ("July 7th, 2022", "2022-07-07"),
        ("Sept. 3rd of 2021, 3 Dec", "2021-09-03 2022-12-03"),
        ("2024-02-29 and 2024-02-31", "2024-02-29"),
        ("16.5.2021, 5/16/2022, 5/6/2022", "2021-05-16 2022-05-16"),
        ("since May, last December, next March", "2023-05 2022-12 2024-03"),
        ("December was hard", "2022-12"),
        ("29 February", "2024-02-29"),
        ("in 2019", "2019"),
        ("we may march, June said", ""),
        ("step 2 may fail", ""),
        ("nothing", ""),
    ],
)
def test_times_are_counted_from_the_text_s_own(text: str, times: str) -> None:
    found = [time for time in meant_times(text, WEDNESDAY) if time != Time(2023, 5, 17)]
    assert found == [Time(*map(int, time.split("-"))) for time in times.split()]


@pytest.mark.rule("M-50")
@pytest.mark.parametrize(
    ("text", "origin", "time"),
    [
        ("last month", date(2023, 5, 31), Time(2023, 4)),
        ("last month", date(2023, 3, 31), Time(2023, 2)),
        ("next month", date(2023, 1, 31), Time(2023, 2)),
        ("next month", date(2023, 12, 31), Time(2024, 1)),
        ("last year", date(2024, 12, 31), Time(2023)),
        ("December 28", date(2024, 1, 5), Time(2023, 12, 28)),
        ("next year", date(9999, 1, 1), None),
        ("tomorrow", date(9999, 12, 31), None),
        ("last month", date(1, 1, 1), None),
        ("December", date(1, 1, 1), Time(1, 12)),
    ],
)
def test_times_at_the_ends_of_months_and_years(text: str, origin: date, time: Time | None) -> None:
    assert meant_times(text, origin)[1:] == [time] * (time is not None)


@pytest.mark.rule("M-50")
def test_without_an_own_time_a_text_means_only_what_it_names() -> None:
    assert meant_times("yesterday, on May 2nd, on 3 June 2021", None) == [
        Time(None, 5, 2),
        Time(2021, 6, 3),
    ]


@pytest.mark.rule("M-50")
def test_times_are_recognised() -> None:
    assert asks_when("When did it happen?")
    assert asks_when("In which year did she move?")
    assert not asks_when("Who moved?")
    assert tells_when("It was last summer.")
    assert not tells_when("It was nice.")
    assert "may" in time_terms("yesterday", date(2023, 5, 20))
    assert (
        len(meant_times(" ".join(f"{day} weeks ago" for day in range(99)), date(2023, 5, 20))) == 9
    )


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
