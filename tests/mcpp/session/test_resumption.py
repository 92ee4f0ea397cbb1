"""Position, replay and the bounded inbox, without a session."""

from typing import Any

import pytest

from mcpp import Envelope, new_envelope
from mcpp.session.resumption import MISSED_MESSAGES, Delivery, Gap, HistoryEnd, Resumption


def chat(text: str = "") -> Envelope:
    return new_envelope("chat", {"text": text}, sender="you")


def welcomed(replayed: int = 0, **options: Any) -> Resumption:
    resumption = Resumption(**options)
    resumption.begin(joined_before=False)
    welcome(resumption, replayed, joined_before=False)
    return resumption


def welcome(resumption: Resumption, replayed: int = 0, **changes: Any) -> None:
    facts: dict[str, Any] = {
        "position": None,
        "resumed": False,
        "lost_log": False,
        "joined_before": True,
    }
    resumption.welcome(replayed, **facts | changes)


def taken(resumption: Resumption) -> list[Delivery | HistoryEnd | Gap]:
    items = []
    while (item := resumption.take()) is not None:
        items.append(item)
    return items


@pytest.mark.rule("P-09")
def test_a_connection_resumes_after_the_last_envelope() -> None:
    resumption = welcomed(last=5)
    last = chat()
    resumption.receive(chat(), 0, 100)
    resumption.receive(last, 0, 100)
    assert resumption.begin(joined_before=True) == (last.id, MISSED_MESSAGES)


@pytest.mark.rule("P-03")
def test_the_first_connection_requests_what_was_asked_for() -> None:
    assert Resumption(last=5).begin(joined_before=False) == (None, 5)
    assert Resumption(last=5, after="x").begin(joined_before=False) == ("x", 5)


@pytest.mark.rule("P-09")
def test_the_end_of_a_replay_moves_the_position_past_what_the_filter_withheld() -> None:
    resumption = Resumption()
    resumption.begin(joined_before=False)
    welcome(resumption, 1, position="end", joined_before=False)
    first = chat()
    assert resumption.position is None
    resumption.receive(first, 0, 100)
    assert resumption.position == "end"


@pytest.mark.rule("P-09")
def test_the_echo_of_a_repetition_does_not_move_the_position() -> None:
    resumption = welcomed()
    last = chat()
    resumption.receive(last, 0, 100)
    resumption.receive(chat(), 2, 100)
    assert resumption.position == last.id


@pytest.mark.rule("P-08")
def test_an_envelope_is_delivered_once() -> None:
    resumption = welcomed()
    envelope = chat()
    assert resumption.is_new(envelope.id)
    assert resumption.receive(envelope, 0, 100)
    assert not resumption.is_new(envelope.id)
    assert resumption.receive(envelope, 0, 100)
    assert taken(resumption) == [Delivery(envelope, False)]


@pytest.mark.rule("P-08")
def test_ids_are_remembered_for_longer_than_a_gateway_replays() -> None:
    resumption = welcomed(capacity=10 * MISSED_MESSAGES)
    first = chat()
    template = chat()
    resumption.receive(first, 0, 100)
    for number in range(2 * MISSED_MESSAGES):
        resumption.receive(template.__replace__(id=f"n{number}"), 0, 100)
    assert not resumption.is_new(first.id)


@pytest.mark.rule("P-03")
def test_history_is_marked_over_several_connections() -> None:
    resumption = welcomed(2, last=2)
    resumption.receive(chat(), 0, 100)
    resumption.begin(joined_before=True)
    welcome(resumption, 2, resumed=True)
    resumption.receive(chat(), 0, 100)
    resumption.receive(chat(), 0, 100)
    assert resumption.history == 2
    marks = [item.replayed for item in taken(resumption) if isinstance(item, Delivery)]
    assert marks == [True, True, False]


def test_an_unreadable_envelope_counts_as_replayed() -> None:
    resumption = welcomed(2, last=2)
    resumption.skip()
    assert resumption.replaying == 1
    resumption.receive(chat(), 0, 100)
    resumption.skip()
    assert resumption.replaying == 0


@pytest.mark.rule("P-03")
@pytest.mark.parametrize("unreadable", [0, 1, 2])
def test_the_end_of_the_history_is_marked_even_if_its_envelopes_are_unreadable(
    unreadable: int,
) -> None:
    resumption = welcomed(3, last=3)
    for number in range(3):
        if number < 3 - unreadable:
            resumption.receive(chat(), 0, 100)
        else:
            resumption.skip()
    resumption.receive(chat(), 0, 100)
    assert [type(item) for item in taken(resumption)] == [
        *[Delivery] * (3 - unreadable),
        HistoryEnd,
        Delivery,
    ]


@pytest.mark.rule("P-10")
@pytest.mark.parametrize(
    ("changes", "gaps"),
    [
        ({"resumed": True}, []),
        ({"resumed": False}, [Gap(lost_log=False)]),
        ({"resumed": False, "lost_log": True}, [Gap(lost_log=True)]),
        ({"resumed": True, "lost_log": True}, [Gap(lost_log=True)]),
    ],
)
def test_a_connection_that_does_not_continue_the_last_is_a_gap(
    changes: dict[str, Any], gaps: list[Gap]
) -> None:
    resumption = welcomed()
    resumption.begin(joined_before=True)
    welcome(resumption, **changes)
    assert taken(resumption) == gaps


@pytest.mark.rule("P-11")
def test_a_full_inbox_keeps_its_position_until_a_new_connection() -> None:
    resumption = welcomed(capacity=2)
    kept = [chat(), chat()]
    assert all(resumption.receive(envelope, 0, 100) for envelope in kept)
    rest = chat()
    assert not resumption.receive(rest, 0, 100)
    taken(resumption)
    assert not resumption.receive(chat(), 0, 100)  # or the order would be lost
    assert (resumption.position, resumption.has_room_again) == (kept[-1].id, True)
    resumption.begin(joined_before=True)
    welcome(resumption, 1, resumed=True)
    assert resumption.receive(rest, 0, 100)
    assert taken(resumption) == [Delivery(rest, False)]


@pytest.mark.rule("P-11")
def test_an_inbox_is_crowded_from_the_middle_on_until_it_overflows() -> None:
    resumption = welcomed(capacity=2)
    crowded = []
    for _ in range(3):
        crowded.append(resumption.is_crowded)
        resumption.receive(chat(), 0, 100)
    assert crowded == [False, False, True]
    assert not resumption.is_crowded
    assert not resumption.has_room_again


@pytest.mark.rule("P-11")
def test_what_was_reported_without_room_is_delivered_later_but_not_new() -> None:
    resumption = welcomed(capacity=1)
    envelope = chat()
    resumption.receive(chat(), 0, 100)
    assert not resumption.receive(envelope, 0, 100)
    resumption.mark_reported(envelope.id)
    assert not resumption.is_new(envelope.id)
    taken(resumption)
    resumption.begin(joined_before=True)
    welcome(resumption, 1, resumed=True)
    assert resumption.receive(envelope, 0, 100)
    assert taken(resumption) == [Delivery(envelope, False)]
