"""The client session without a connection."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import Envelope, decode, encode, filters, new_envelope
from mcpp.errors import TooLargeError, WrongParticipantError
from mcpp.session.effects import Answered, Echoed, EnvelopeRefused, Noted, Unreadable, Unsendable
from mcpp.session.resumption import MISSED_MESSAGES, Delivery, Gap, HistoryEnd, Join
from mcpp.session.session import ClientSession, is_final


def welcome(**changes: Any) -> bytes:
    facts = {
        "you": {"id": "me"},
        "participants": [{"id": "me"}],
        "pod": {"name": "p", "epoch": "one"},
        "limits": {},
        "contexts": [],
        "resumed": False,
        "replayed": 0,
    }
    return system("system/welcome", facts | changes)


def system(kind: str, payload: Any, **members: Any) -> bytes:
    return encode(new_envelope(kind, payload, sender="system:gateway", **members))


def refusal(id: str | None, code: str, **facts: Any) -> bytes:
    payload = {"error": code, "message": "no", **facts}
    return system("system/error", payload, correlation_id=id)


def chat(text: str = "", *, sender: str = "you", **members: Any) -> Envelope:
    return new_envelope("chat", {"text": text}, sender=sender, **members)


def joined(**options: Any) -> ClientSession:
    session = ClientSession("me", **options)
    session.join()
    session.receive(welcome(), 0)
    return session


def taken(session: ClientSession) -> list[str | Gap]:
    """Empty the inbox and return its gaps and the texts of its envelopes."""
    items: list[str | Gap] = []
    while (item := session.take()) is not None:
        if not isinstance(item, HistoryEnd):
            items.append(item if isinstance(item, Gap) else item.envelope.payload["text"])
    return items


# --- joining ---


def test_the_first_join_requests_what_was_asked_for() -> None:
    session = ClientSession(filter=filters.main_only, last=5)
    assert session.join() == Join(filters.main_only, None, 5)
    assert session.join().query() == {"last": "5", "filter": '{"main":true}'}


@pytest.mark.rule("P-02")
def test_another_name_in_the_welcome_is_an_error() -> None:
    session = ClientSession("me")
    session.join()
    with pytest.raises(WrongParticipantError):
        session.receive(welcome(you={"id": "other"}), 0)


def test_without_a_name_the_welcome_provides_it() -> None:
    session = ClientSession()
    session.join()
    session.receive(welcome(), 0)
    assert session.name == "me"


@pytest.mark.rule("P-01")
def test_nothing_is_sent_before_the_replay_is_over() -> None:
    session = ClientSession("me", last=2)
    session.join()
    mine = chat(sender="me")
    session.send(mine, give_up_at=0)
    assert session.transmit(0) == []
    session.receive(welcome(replayed=2), 0)
    session.receive(encode(chat("1")), 0)
    assert session.transmit(0) == []
    session.receive(encode(chat("2")), 0)
    assert session.transmit(0) == [encode(mine)]


@pytest.mark.rule("P-01", "P-05")
def test_an_envelope_echoed_in_the_replay_is_not_resent() -> None:
    session = joined()
    mine = chat(sender="me")
    session.send(mine, give_up_at=0)
    assert len(session.transmit(0)) == 1
    session.join()
    session.receive(welcome(resumed=True, replayed=1), 0)
    assert session.receive(encode(mine), 0) == [Echoed(mine)]
    assert session.transmit(0) == []


@pytest.mark.rule("P-03")
def test_only_history_is_marked_as_replayed() -> None:
    session = ClientSession("me", last=1)
    session.join()
    session.receive(welcome(replayed=1), 0)
    session.receive(encode(chat("history")), 0)
    session.join()
    session.receive(welcome(resumed=True, replayed=1), 0)
    session.receive(encode(chat("meanwhile")), 0)
    items = [session.take(), session.take(), session.take()]
    assert [item.replayed for item in items if isinstance(item, Delivery)] == [True, False]


@pytest.mark.rule("P-03")
def test_history_is_requested_again_if_none_of_it_arrived() -> None:
    session = ClientSession("me", last=1)
    session.join()
    session.receive(welcome(replayed=1), 0)
    assert session.join() == Join(None, None, 1)
    session.receive(welcome(replayed=1), 0)
    history = chat("history")
    session.receive(encode(history), 0)
    # Envelopes between the two connections may be missing.
    assert [session.take(), session.take()] == [Gap(lost_log=False), Delivery(history, True)]


@pytest.mark.rule("P-04")
def test_replayed_presence_does_not_change_the_participants() -> None:
    left = {"event": "leave", "participant": {"id": "me"}}
    session = ClientSession("me", last=1)
    session.join()
    session.receive(welcome(replayed=1), 0)
    session.receive(system("system/presence", left), 0)
    assert set(session.participants) == {"me"}
    session.receive(system("system/presence", left), 0)
    assert set(session.participants) == set()


@pytest.mark.rule("P-42")
def test_many_that_join_together_count_by_their_share_of_the_text() -> None:
    session = ClientSession()
    session.join()
    session.receive(welcome(), 0.0)
    for batch in range(8):
        entries = [
            {"event": "join", "participant": {"id": f"p{batch}-{number}"}} for number in range(500)
        ]
        session.receive(system("system/presence", {"entries": entries}), 0.0)
    assert len(session.participants) == 4001


@pytest.mark.rule("G-64")
def test_presence_of_several_is_applied_in_order() -> None:
    session = ClientSession("me")
    session.join()
    session.receive(welcome(), 0)
    entries = [
        {"event": "join", "participant": {"id": "a"}},
        {"event": "join", "participant": {"id": "b"}},
        {"event": "leave", "participant": {"id": "a"}},
    ]
    session.receive(system("system/presence", {"entries": entries}), 0)
    assert set(session.participants) == {"me", "b"}


# --- positions and gaps ---


@pytest.mark.rule("P-09")
def test_the_next_connection_resumes_after_the_last_envelope_of_the_log() -> None:
    session = joined()
    last = chat()
    session.receive(encode(last), 0)
    session.receive(refusal(None, "invalid_envelope"), 0)
    assert session.join() == Join(None, last.id, MISSED_MESSAGES)


@pytest.mark.rule("P-09")
def test_before_any_envelope_the_position_is_that_of_the_welcome() -> None:
    session = ClientSession("me")
    session.join()
    session.receive(welcome(position="here"), 0)
    assert session.join().after == "here"


@pytest.mark.rule("P-09")
def test_the_echo_of_a_resent_envelope_does_not_move_the_position() -> None:
    session = joined()
    mine, last = chat(sender="me"), chat()
    session.send(mine, give_up_at=0)
    session.transmit(0)
    session.join()
    session.receive(welcome(), 0)
    session.transmit(0)
    session.receive(encode(last), 0)
    session.receive(encode(mine), 0)
    assert session.position == last.id


@pytest.mark.rule("P-10")
@pytest.mark.parametrize(
    ("changes", "gaps"),
    [
        ({"resumed": True}, []),
        ({"resumed": False}, [Gap(lost_log=False)]),
        ({"resumed": False, "pod": {"name": "p", "epoch": "two"}}, [Gap(lost_log=True)]),
        ({"resumed": True, "pod": {"name": "p", "epoch": "two"}}, [Gap(lost_log=True)]),
    ],
)
def test_a_gap_is_delivered_where_it_occurred(changes: dict[str, Any], gaps: list[Gap]) -> None:
    session = joined()
    session.receive(encode(chat("before")), 0)
    session.join()
    session.receive(welcome(**changes), 0)
    session.receive(encode(chat("after")), 0)
    assert taken(session) == ["before", *gaps, "after"]


@pytest.mark.rule("P-08")
def test_an_envelope_that_was_seen_is_dropped() -> None:
    session = joined()
    again = encode(chat("once"))
    session.receive(again, 0)
    session.join()
    session.receive(welcome(pod={"name": "p", "epoch": "two"}), 0)
    session.receive(again, 0)
    assert taken(session) == ["once", Gap(lost_log=True)]


# --- the bounded inbox ---


@pytest.mark.rule("P-11")
def test_a_full_inbox_keeps_its_position_and_echoes_still_settle() -> None:
    session = joined(capacity=2)
    mine = chat(sender="me")
    session.send(mine, give_up_at=0)
    session.transmit(0)
    kept = [chat("1"), chat("2")]
    for envelope in (*kept, chat("3")):
        session.receive(encode(envelope), 0)
    assert session.receive(encode(mine), 0) == [Echoed(mine)]
    assert session.position == kept[-1].id
    assert not session.should_rejoin
    session.take()
    assert not session.should_rejoin
    session.take()
    assert session.should_rejoin
    session.join()
    assert not session.should_rejoin


@pytest.mark.rule("P-11")
def test_a_session_does_not_rejoin_in_a_replay_while_an_envelope_waits_to_be_sent() -> None:
    session = ClientSession("me", after="before", capacity=1)
    session.join()
    session.receive(welcome(resumed=True, replayed=3), 0)
    for text in ("1", "2"):
        session.receive(encode(chat(text)), 0)
    assert taken(session) == ["1"]
    assert session.should_rejoin
    mine = chat(sender="me")
    session.send(mine, give_up_at=0)
    assert not session.should_rejoin
    session.receive(encode(chat("3")), 0)
    assert session.should_rejoin
    assert session.transmit(0) == [encode(mine)]


@given(
    st.lists(st.sampled_from(["send", "cut", "cut short", "take"]), max_size=80),
    st.integers(1, 4),
    st.integers(0, 6),
)
@pytest.mark.rule("P-03", "P-08")
def test_every_envelope_is_delivered_once_and_in_order(
    steps: list[str], capacity: int, last: int
) -> None:
    """For any loss of connections and any pace of reading; history stays marked as such."""
    log = [chat(str(number)) for number in range(8)]
    session = ClientSession("me", capacity=capacity, last=last)
    beginning = len(log) - last

    def connect(most: int | None = None) -> None:
        after = session.join().after
        places = [place for place, envelope in enumerate(log) if envelope.id == after]
        missed = log[places[0] + 1 if places else beginning :]
        greeting = welcome(resumed=bool(places), replayed=len(missed), position=log[-1].id)
        for text in (greeting, *map(encode, missed[:most])):
            session.receive(text, 0)

    connect(1)
    found: list[tuple[str, bool]] = []
    for step in [*steps, "cut", *(["take"] * 4 * (len(steps) + last))]:
        if step == "send":
            log.append(chat(str(len(log))))
            if session.live:
                session.receive(encode(log[-1]), 0)
        elif step == "cut":
            connect()
        elif step == "cut short":
            connect(1)
        elif (item := session.take()) is not None and not isinstance(item, HistoryEnd):
            assert isinstance(item, Delivery)
            found.append((item.envelope.payload["text"], item.replayed))
        if session.should_rejoin:
            connect()
    assert found == [(str(place), place < 8) for place in range(beginning, len(log))]


# --- settling ---


def test_a_refusal_settles_the_envelope_it_is_correlated_to() -> None:
    session = joined()
    mine = chat(sender="me")
    session.send(mine, give_up_at=0)
    session.transmit(0)
    (effect,) = session.receive(refusal(mine.id, "capability_violation"), 0)
    assert isinstance(effect, EnvelopeRefused)
    assert (effect.envelope, effect.details.error) == (mine, "capability_violation")
    session.join()
    session.receive(welcome(), 0)
    assert session.transmit(0) == []


@pytest.mark.rule("P-07")
def test_an_envelope_that_is_too_large_is_not_sent() -> None:
    session = ClientSession("me")
    session.join()
    session.receive(welcome(limits={"max_message_bytes": 300}), 0)
    with pytest.raises(TooLargeError):
        session.send(chat("x" * 300, sender="me"), give_up_at=0)
    assert session.transmit(0) == []


@pytest.mark.rule("P-07")
def test_an_envelope_above_a_lowered_limit_is_not_resent() -> None:
    session = joined()
    long, short = chat("x" * 300, sender="me"), chat(sender="me")
    for mine in (long, short):
        session.send(mine, give_up_at=0)
    session.transmit(0)
    session.join()
    _, effect = session.receive(welcome(limits={"max_message_bytes": 300}), 0)
    assert isinstance(effect, Unsendable)
    assert (effect.envelope, effect.error.limit_bytes) == (long, 300)
    assert session.transmit(0) == [encode(short)]


@pytest.mark.rule("P-14")
def test_an_answer_counts_once_and_only_from_the_participant_that_was_asked() -> None:
    session = joined()
    request = new_envelope("mcp/request:ping", sender="me", to=["you"])
    session.expect(request, "you")

    def answer(sender: str) -> Envelope:
        return new_envelope("mcp/response:ping", sender=sender, correlation_id=request.id)

    assert session.receive(encode(answer("mallory")), 0) == []
    right = answer("you")
    assert session.receive(encode(right), 0) == [Answered(request.id, right)]
    assert session.receive(encode(answer("you")), 0) == []


PARAMS = {"name": "t", "arguments": {}}


def proposal_to(participant: str) -> Envelope:
    payload = {"method": "tools/call", "params": PARAMS}
    return new_envelope("mcp/proposal:tools/call:t", payload, sender="me", to=[participant])


@pytest.mark.rule("P-20")
def test_the_answer_to_a_proposal_is_that_of_its_first_fulfilment() -> None:
    session = joined()
    proposal = proposal_to("owner")
    session.expect(proposal, "owner")

    def request(sender: str) -> Envelope:
        payload = {"jsonrpc": "2.0", "id": sender, "method": "tools/call", "params": PARAMS}
        return new_envelope(
            "mcp/request:tools/call:t",
            payload,
            sender=sender,
            to=["owner"],
            correlation_id=proposal.id,
            id=sender,
        )

    first, second = request("boss"), request("rival")
    assert session.receive(encode(first), 0) == [Noted(proposal.id, first)]
    assert session.receive(encode(second), 0) == []
    answer = new_envelope("mcp/response:tools/call:t", sender="owner", correlation_id=first.id)
    assert session.receive(encode(answer), 0) == [Answered(proposal.id, answer)]


@pytest.mark.rule("P-11")
def test_progress_that_did_not_fit_the_inbox_is_reported_once() -> None:
    session = joined(capacity=1)
    call = new_envelope("mcp/request:tools/call:t", sender="me", to=["files"])
    session.expect(call, "files")
    session.receive(encode(chat("first")), 0)
    kind = "mcp/notification:notifications/progress"
    progress = new_envelope(kind, {"text": ""}, sender="files", correlation_id=call.id)
    assert session.receive(encode(progress), 0) == [Noted(call.id, progress)]
    taken(session)
    session.join()
    session.receive(welcome(resumed=True, replayed=1), 0)
    assert session.receive(encode(progress), 0) == []
    assert taken(session) == [""]


@pytest.mark.rule("P-14")
def test_a_reused_request_id_does_not_let_another_participant_answer() -> None:
    session = joined()
    call = new_envelope("mcp/request:tools/call:t", sender="me", to=["files"])
    proposal = proposal_to("mallory")
    session.expect(call, "files")
    session.expect(proposal, "mallory")
    forged = new_envelope(
        "mcp/request:tools/call:t",
        {"jsonrpc": "2.0", "id": call.id, "method": "tools/call", "params": PARAMS},
        sender="mallory",
        to=["mallory"],
        correlation_id=proposal.id,
        id=call.id,
    )
    assert session.receive(encode(forged), 0) == []
    for sender, effects in (("mallory", 0), ("files", 1)):
        answer = new_envelope("mcp/response:tools/call:t", sender=sender, correlation_id=call.id)
        assert len(session.receive(encode(answer), 0)) == effects


def test_an_unreadable_text_is_reported_and_skipped() -> None:
    session = joined()
    (effect,) = session.receive(b'{"from": 1}', 0)
    assert isinstance(effect, Unreadable)
    session.receive(encode(chat("next")), 0)
    assert taken(session) == ["next"]


@pytest.mark.rule("C-14", "C-04")
def test_contexts_are_known_until_they_expire() -> None:
    session = joined()
    text = '"context":{"id":"c","parent":"above"},"payload"'
    session.receive(encode(chat()).replace(b'"payload"', text.encode()), 0)
    assert session.contexts["c"].parent == "above"
    assert "above" in session.contexts  # a placeholder, as at the gateway
    gone = {
        "event": "expired",
        "context": {"id": "c"},
        "messages": 1,
        "participants": [],
        "started": "",
        "last": "",
    }
    session.receive(system("system/context", gone), 0)
    assert "c" not in session.contexts


def test_the_filter_in_force_is_requested_on_the_next_connection() -> None:
    session = joined()
    mine = new_envelope("pod/filter", {"filter": {"main": True}}, sender="me")
    session.send(mine, give_up_at=0)
    session.transmit(0)
    answer = system("system/filter", {"filter": {"main": True}}, correlation_id=mine.id)
    assert session.receive(answer, 0) == (Echoed(mine),)
    assert session.join().filter == filters.main_only


@pytest.mark.rule("P-11")
@pytest.mark.parametrize(
    ("before", "either"),
    [(filters.kind("chat"), {"any": [{"kind": "chat"}, {"main": True}]}), (None, None)],
)
def test_a_filter_set_while_the_inbox_was_full_is_set_again_at_its_place(
    before: filters.Filter | None, either: Any
) -> None:
    session = joined(capacity=1, filter=before)
    first, second = chat("first"), chat("second")
    for envelope in (first, second):
        session.receive(encode(envelope), 0)
    change = new_envelope("pod/filter", {"filter": {"main": True}}, sender="me")
    later = new_envelope("pod/filter", {"filter": {"main": True}}, sender="me")
    session.send(change, give_up_at=0)
    session.transmit(0)
    answer = system("system/filter", {"filter": {"main": True}}, correlation_id=change.id)
    assert session.receive(answer, 0) == (Echoed(change),)
    session.send(later, give_up_at=0)
    taken(session)

    join = session.join()
    assert join.after == first.id
    assert (None if join.filter is None else join.filter.to_json()) == either
    session.receive(welcome(resumed=True, replayed=1), 0)
    session.receive(encode(second), 0)
    assert session.transmit(0) == [encode(change), encode(later)]
    assert session.receive(answer, 0) == (Echoed(change),)
    assert session.join().filter == filters.main_only


@pytest.mark.rule("P-11")
def test_two_filters_that_are_too_long_together_pass_everything() -> None:
    long = filters.kind("a" * 60)
    for _ in range(40):
        long |= filters.kind("b" * 60)
    session = joined(capacity=1, filter=long)
    for text in "ab":
        session.receive(encode(chat(text)), 0)
    session.receive(system("system/filter", {"filter": (~long).to_json()}), 0)
    assert session.join().filter is None


@pytest.mark.rule("P-12")
def test_only_the_upper_band_of_close_codes_is_final() -> None:
    assert [is_final(code) for code in (1000, 1006, 1011, 4000, 4499)] == [False] * 5
    assert [is_final(code) for code in (4500, 4999)] == [True] * 2


# --- rate limits ---


@pytest.mark.rule("P-06")
def test_after_a_rate_limit_envelopes_are_sent_one_by_one_and_in_order() -> None:
    session = joined()
    for number in range(6):
        session.send(chat(str(number), sender="me"), give_up_at=100)
    sent = [decode(text) for text in session.transmit(0)]
    for envelope in sent:
        session.receive(refusal(envelope.id, "rate_limited", retry_after_seconds=2), 0)
    assert session.transmit(1) == []
    assert session.outgoing.wake_at(1) == 2
    session.send(chat("late", sender="me"), give_up_at=100)
    again = []
    while texts := session.transmit(2):
        (text,) = texts
        again.append(decode(text).payload["text"])
        session.receive(text, 2)
    assert again == [*map(str, range(6)), "late"]


@pytest.mark.rule("P-06")
def test_no_more_envelopes_are_in_flight_than_the_limit_certainly_allows() -> None:
    session = ClientSession("me")
    session.join()
    session.receive(welcome(limits={"messages_per_second": 10, "burst": 3}), 0)
    for number in range(6):
        session.send(chat(str(number), sender="me"), give_up_at=100)
    burst = session.transmit(0)
    assert len(burst) == 3
    for text in burst:
        assert session.transmit(0.2) == []
        session.receive(text, 0.2)
    assert len(session.transmit(0.2)) == 2  # what a fifth of a second allows


@pytest.mark.rule("P-06")
def test_an_envelope_given_up_after_a_refusal_is_not_resent() -> None:
    session = joined()
    given_up, other = chat("given up", sender="me"), chat("other", sender="me")
    session.send(given_up, give_up_at=100)
    session.transmit(0)
    session.receive(refusal(given_up.id, "rate_limited", retry_after_seconds=2), 0)
    session.outgoing.discard(given_up.id)
    session.send(other, give_up_at=100)
    session.transmit(2)
    session.outgoing.discard(other.id)
    (effect,) = session.receive(refusal(other.id, "rate_limited", retry_after_seconds=2), 2)
    assert isinstance(effect, EnvelopeRefused)
    assert session.transmit(100) == []
    assert not len(session.outgoing)


@pytest.mark.rule("P-18")
def test_discard_returns_whether_an_envelope_was_never_sent() -> None:
    session = joined()
    unsent, sent = chat(sender="me"), chat(sender="me")
    session.send(sent, give_up_at=0)
    session.transmit(0)
    session.send(unsent, give_up_at=0)
    session.join()
    assert session.outgoing.discard(unsent.id)
    assert not session.outgoing.discard(sent.id)


@pytest.mark.rule("P-06")
def test_a_context_at_its_limit_keeps_its_order() -> None:
    session = joined()
    first, second = (chat(text, sender="me", context="c") for text in ("first", "second"))
    session.send(first, give_up_at=100)
    session.transmit(0)
    session.receive(refusal(first.id, "rate_limited", retry_after_seconds=5, scope="context"), 0)
    session.send(second, give_up_at=100)
    assert session.transmit(1) == []
    assert session.transmit(5) == [encode(first)]
    session.receive(encode(first), 5)
    assert session.transmit(5) == [encode(second)]


@pytest.mark.rule("P-06")
@pytest.mark.parametrize(("others", "in_flight"), [(1, 3), (4, 1), (100, 1)])
def test_envelopes_are_sent_one_by_one_once_half_of_a_contexts_limit_is_used(
    others: int, in_flight: int
) -> None:
    session = ClientSession("me")
    session.join()
    session.receive(welcome(limits={"context_messages_per_second": 2, "context_burst": 8}), 0)
    for _ in range(others):
        session.receive(encode(chat(context="c")), 0)
    mine = [chat(str(number), sender="me", context="c") for number in range(3)]
    for envelope in mine:
        session.send(envelope, give_up_at=100)
    sent = session.transmit(0)
    assert sent == [encode(envelope) for envelope in mine[:in_flight]]
    for text in sent:
        session.receive(text, 0)
    # After four seconds the burst is full again.
    assert session.transmit(4) == [encode(envelope) for envelope in mine[in_flight:]]


@pytest.mark.rule("P-06")
def test_the_limit_of_one_context_delays_only_its_own_envelopes() -> None:
    session = joined()
    inside, outside = chat(sender="me", context="c"), chat(sender="me")
    session.send(inside, give_up_at=100)
    session.transmit(0)
    session.receive(refusal(inside.id, "rate_limited", retry_after_seconds=5, scope="context"), 0)
    session.send(outside, give_up_at=100)
    assert session.transmit(0) == [encode(outside)]
    assert session.outgoing.wake_at(0) == 5
    assert session.transmit(5) == [encode(inside)]


def test_a_rate_limit_beyond_the_deadline_is_a_refusal() -> None:
    session = joined()
    mine = chat(sender="me")
    session.send(mine, give_up_at=1)
    session.transmit(0)
    (effect,) = session.receive(refusal(mine.id, "rate_limited", retry_after_seconds=2), 0)
    assert isinstance(effect, EnvelopeRefused)


@pytest.mark.rule("P-06")
def test_seconds_needed_is_how_long_the_limits_delay_the_queue() -> None:
    session = ClientSession("me")
    session.join()
    assert session.outgoing.seconds_needed(0) == 0
    limits = {
        "messages_per_second": 10,
        "burst": 3,
        "context_messages_per_second": 2,
        "context_burst": 8,
    }
    session.receive(welcome(limits=limits), 0)
    for _ in range(20):
        session.send(chat(sender="me"), give_up_at=100)
    assert session.outgoing.seconds_needed(0) == 2
    for _ in range(10):
        session.send(chat(sender="me", context="c"), give_up_at=100)
    assert session.outgoing.seconds_needed(0) == 5
    first = decode(session.transmit(0)[0])
    session.receive(refusal(first.id, "rate_limited", retry_after_seconds=4), 0)
    assert session.outgoing.seconds_needed(1) == 8
