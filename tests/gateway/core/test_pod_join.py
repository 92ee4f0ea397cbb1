"""Joining and leaving: welcome, replay, resumption, presence, takeover, lost positions."""

import pytest

from mcpp import filters
from mcpp_gateway.core import effects
from mcpp_gateway.core.effects import Close, Move
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.system_envelopes import MAX_WELCOME_BYTES
from tests.gateway.harness import FREE, HarnessClient, PodHarness, text


@pytest.mark.rule("G-10")
def test_the_welcome_comes_first_with_participants_limits_and_pod() -> None:
    harness = PodHarness("a", "b", capabilities={"b": [{"kind": "chat"}]})
    a = harness.join("a")
    harness.send(a, context={"id": "c", "type": "t", "parent": "p"})
    b = harness.join("b")
    welcome = b.welcome
    assert set(welcome) == {
        "you",
        "participants",
        "pod",
        "limits",
        "contexts",
        "resumed",
        "replayed",
        "position",
    }
    assert welcome["you"] == {"id": "b", "capabilities": [{"kind": "chat"}]}
    assert [each["id"] for each in welcome["participants"]] == ["a", "b"]
    assert welcome["participants"][1] == welcome["you"]
    assert welcome["pod"] == {"name": "test", "epoch": harness.pod.epoch, "log": "memory"}
    assert welcome["limits"]["burst"] == PodLimits().burst
    assert set(welcome["limits"]) == set(PodLimits.__struct_fields__)
    assert welcome["contexts"] == [
        {"id": "c", "type": "t", "parent": "p", "creator": "a", "messages": 1},
        {"id": "p", "messages": 0},
    ]
    assert (welcome["resumed"], welcome["replayed"]) == (False, 0)


@pytest.mark.rule("G-10", "G-12")
def test_a_client_cut_off_before_any_envelope_resumes_from_the_welcomes_position() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.send(a)
    b = harness.join("b")
    harness.leave(b)
    missed = harness.send(a)
    b = harness.join("b", after=b.welcome["position"])
    assert b.welcome["resumed"] is True
    assert b.ids[1:] == [missed]


@pytest.mark.rule("G-11")
def test_a_welcome_stays_in_bounds_and_leaves_out_the_oldest_contexts_first() -> None:
    limits = {**FREE, "max_contexts_per_participant": 5000}
    harness = PodHarness("a", "b", limits=limits)
    a = harness.join("a")
    for i in range(5000):
        harness.send(a, context={"id": f"{i:0100}"})
    b = harness.join("b")
    assert len(b.texts[0]) <= MAX_WELCOME_BYTES
    assert b.welcome["more"] is True
    contexts = b.welcome["contexts"]
    assert 1500 < len(contexts) < 5000
    assert [int(each["id"]) for each in contexts] == list(range(4999, 4999 - len(contexts), -1))


@pytest.mark.rule("G-11")
def test_capabilities_are_left_out_before_ids() -> None:
    ids = [f"p{i}" for i in range(40)]
    fat = [{"kind": "x" * 10_000}]
    harness = PodHarness("a", *ids, capabilities=dict.fromkeys(ids, fat))
    for id in ids:
        harness.join(id)
    a = harness.join("a")
    assert len(a.texts[0]) <= MAX_WELCOME_BYTES
    assert [each["id"] for each in a.welcome["participants"]] == [*ids, "a"]
    bare = [each for each in a.welcome["participants"] if "capabilities" not in each]
    assert 10 < len(bare) < 40
    assert a.welcome["more"] is True


@pytest.mark.rule("G-11")
def test_where_not_even_the_ids_fit_the_latest_are_left_out() -> None:
    ids = [f"{i:064}" for i in range(4000)]
    harness = PodHarness(*ids)
    for id in ids:
        harness.join(id, behind=True)
    last = harness.join(ids[-1])
    assert len(last.texts[0]) <= MAX_WELCOME_BYTES
    listed = [each["id"] for each in last.welcome["participants"]]
    assert listed == ids[: len(listed)]
    assert last.welcome["you"]["id"] == ids[-1]
    assert last.welcome["more"] is True


@pytest.mark.rule("G-11")
def test_a_welcome_in_which_everything_fits_has_no_more_flag() -> None:
    harness = PodHarness("a")
    assert "more" not in harness.join("a").welcome


@pytest.mark.rule("G-12", "F-10")
def test_a_stream_resumes_right_behind_the_named_envelope() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    for id in "12345":
        harness.send(a, id=id, kind="even" if id in "24" else "odd")
    b = harness.join("b", after="2")
    assert b.welcome["resumed"] is True
    assert b.welcome["replayed"] == 3
    assert b.ids[1:] == ["3", "4", "5"]
    harness.leave(b)
    b = harness.join("b", after="2", filter=filters.kind("even"))
    assert b.welcome["replayed"] == 1
    assert b.ids[1:] == ["4"]


@pytest.mark.rule("G-12")
@pytest.mark.parametrize(("last", "replayed"), [(None, []), (2, ["4", "5"]), (0, [])])
def test_an_unknown_position_is_reported_and_last_applies(
    last: int | None, replayed: list[str]
) -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    for id in "12345":
        harness.send(a, id=id)
    b = harness.join("b", after="gone \ud800", last=last)
    assert b.welcome["resumed"] is False
    assert b.ids[1:] == replayed
    assert b.welcome["replayed"] == len(replayed)


@pytest.mark.rule("G-12", "G-36")
def test_a_presence_is_a_position_and_an_error_is_none() -> None:
    harness = PodHarness("a", "b", "c")
    a = harness.join("a")
    harness.join("c")
    presence = a.last["id"]
    harness.send(a, "system/x")
    error = a.last["id"]
    harness.send(a, id="1")
    assert harness.join("b", after=presence).welcome["resumed"] is True
    again = harness.join("b", after=error)
    assert again.welcome["resumed"] is False
    assert harness.join("b", after=a.seen[0]["id"]).welcome["resumed"] is False


@pytest.mark.rule("G-13")
def test_last_counts_what_passes_the_filter() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    for i in range(600):
        harness.send(a, id=str(i), kind="rare" if i % 100 == 0 else "often")
    b = harness.join("b", last=3, filter=filters.kind("rare") & ~filters.sender("b"))
    # System broadcasts pass every filter; here none is among the last.
    assert b.ids[1:] == ["300", "400", "500"]
    assert b.welcome["replayed"] == 3


@pytest.mark.rule("G-13")
def test_last_is_ignored_where_the_stream_resumes() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    for id in "12345":
        harness.send(a, id=id)
    assert harness.join("b", after="1", last=1).ids[1:] == ["2", "3", "4", "5"]


@pytest.mark.rule("G-14")
def test_replayed_presence_is_of_others_and_changes_no_roster() -> None:
    harness = PodHarness("a", "b", "c")
    a = harness.join("a")
    harness.send(a, id="start")
    harness.leave(harness.join("b"))
    harness.leave(harness.join("c"))
    b = harness.join("b", after="start")
    about = [envelope["payload"]["participant"]["id"] for envelope in b.seen[1:]]
    assert about == ["c", "c"]
    assert b.welcome["replayed"] == 2
    assert [each["id"] for each in b.welcome["participants"]] == ["a", "b"]


@pytest.mark.rule("G-14")
def test_what_comes_after_the_counted_envelopes_is_live() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.send(a, id="1")
    harness.send(a, id="2")
    b = harness.join("b", last=10, behind=True)
    harness.send(a, id="3")
    while b.session.audience is None:
        harness.catch_up(b)
    history = b.ids[1 : 1 + b.welcome["replayed"]]
    assert history[-2:] == ["1", "2"]
    assert b.ids[1 + b.welcome["replayed"] :] == ["3"]


@pytest.mark.rule("G-15")
def test_replay_comes_in_pieces_of_about_the_size_asked_for() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    for _ in range(100):
        harness.send(a, payload="x" * 1000)
    b = harness.join("b", last=100, behind=True)
    pieces = []
    while b.session.audience is None:
        count = len(b.texts)
        harness.catch_up(b, 10_000)
        pieces.append(sum(map(len, b.texts[count:])))
    assert max(pieces) < 13_000
    assert len(b.texts) == 101


@pytest.mark.rule("G-15")
def test_a_replay_that_passes_nothing_still_lets_others_have_their_turn() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    for _ in range(1000):
        harness.send(a)
    b = harness.join("b", after=a.ids[1], filter=~filters.everything, behind=True)
    rounds = 0
    while b.session.audience is None:
        harness.catch_up(b, 65_536)
        rounds += 1
    assert rounds >= 4


@pytest.mark.rule("G-15", "G-33")
def test_a_session_whose_position_left_the_log_is_closed_and_leaves() -> None:
    harness = PodHarness("a", "b", limits={**FREE, "history_messages": 4})
    a = harness.join("a")
    b = harness.join("b", behind=True)
    harness.catch_up(b, 1)
    for _ in range(5):
        harness.send(a)
    harness.catch_up(b)
    assert b.closed == 4002
    assert a.last["payload"]["event"] == "leave"
    assert harness.pod.participants == ("a",)


@pytest.mark.rule("G-15", "G-38")
def test_a_session_goes_live_only_with_nothing_left_to_send() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.send(a)
    session, _ = harness.pod.join("b", harness.now, last=1)
    texts, effect = harness.pod.catch_up(session, 1 << 20)
    assert len(texts) == 2
    assert effect is None
    assert isinstance(harness.pod.catch_up(session, 1 << 20)[1], Move)


@pytest.mark.rule("G-16")
def test_the_epoch_is_the_logs_and_the_same_for_all() -> None:
    harness = PodHarness("a", "b")
    one = harness.join("a").welcome["pod"]["epoch"]
    harness.tick(10_000)
    assert harness.join("b").welcome["pod"]["epoch"] == one
    other = PodHarness("a")
    other.pod.epoch = "another"
    assert other.join("a").welcome["pod"]["epoch"] == "another"


def with_a_client_behind() -> tuple[PodHarness, HarnessClient, HarnessClient]:
    """Return a pod with envelopes 1 and 2 of @a, and @b, which has not read 2 yet."""
    harness = PodHarness("a", "b")
    a = harness.join("a")
    for id in "12":
        harness.send(a, id=id)
    return harness, a, harness.join("b", after="1", behind=True)


@pytest.mark.rule("G-17", "G-30")
def test_what_is_answered_during_the_replay_keeps_its_place() -> None:
    harness, a, b = with_a_client_behind()
    harness.send(b, "system/x", id="bad")
    harness.send(a, id="3")
    harness.send(b, id="4")
    harness.send(b, id="4")
    harness.send(a, id="5")
    while b.session.audience is None:
        harness.catch_up(b, 1)
    assert b.ids[1] == "2"
    assert b.seen[2]["correlation_id"] == "bad"
    assert b.ids[3:] == ["3", "4", "4", "5"]


@pytest.mark.rule("G-17", "F-12")
def test_a_filter_changed_during_the_replay_begins_where_it_was_asked_for() -> None:
    harness, a, b = with_a_client_behind()
    harness.send(b, "pod/filter", id="ask", payload={"filter": {"kind": "rare"}})
    harness.send(a, id="3")
    harness.send(a, "rare", id="4")
    while b.session.audience is None:
        harness.catch_up(b, 1)
    harness.send(a, id="5")
    harness.send(a, "rare", id="6")
    shown = [envelope.get("correlation_id", envelope["id"]) for envelope in b.seen[1:]]
    assert shown == ["2", "ask", "4", "6"]


@pytest.mark.rule("G-39", "G-33")
def test_what_waits_for_its_place_is_bounded() -> None:
    limits = {**FREE, "outbox_bytes": 4000}
    harness = PodHarness("a", "b", limits=limits)
    a = harness.join("a")
    b = harness.join("b", behind=True)
    sent = 0
    while b.closed is None:
        harness.send(b, "system/x")
        sent += 1
    assert b.closed == 4001
    assert sent < 20
    assert a.last["payload"]["event"] == "leave"


@pytest.mark.rule("G-33")
def test_presence_reaches_the_others_whatever_their_filters() -> None:
    harness = PodHarness("a", "b", capabilities={"b": [{"kind": "chat"}]})
    a = harness.join("a", filter=~filters.everything)
    b = harness.join("b")
    about = {"id": "b", "capabilities": [{"kind": "chat"}]}
    assert a.last["kind"] == "system/presence"
    assert a.last["payload"] == {"event": "join", "participant": about}
    assert "system/presence" not in b.kinds
    harness.leave(b)
    assert a.last["payload"] == {"event": "leave", "participant": about}
    count = len(a.texts)
    harness.leave(b)
    assert len(a.texts) == count


@pytest.mark.rule("G-36")
def test_presence_is_logged_and_replayed() -> None:
    harness = PodHarness("a", "b", "c")
    harness.join("a")
    b = harness.join("b")
    harness.leave(b)
    c = harness.join("c", last=10)
    assert [envelope["payload"]["event"] for envelope in c.seen[1:]] == ["join", "join", "leave"]


@pytest.mark.rule("G-34")
def test_a_newer_connection_takes_over_without_presence() -> None:
    harness = PodHarness("a", "b")
    b = harness.join("b")
    old = harness.join("a")
    count = len(b.texts)
    new = harness.join("a")
    assert old.closed == 4500
    assert len(b.texts) == count
    shown = len(old.texts)
    harness.send(b)
    assert len(old.texts) == shown
    assert new.ids[-1] == b.ids[-1]
    harness.leave(old)
    assert harness.pod.participants == ("b", "a")


@pytest.mark.rule("G-34")
def test_a_connection_that_is_still_behind_can_be_taken_over_too() -> None:
    harness = PodHarness("a")
    old = harness.join("a", behind=True)
    new = harness.join("a")
    assert old.closed == 4500
    assert harness.send(new) == new.ids[-1]


@pytest.mark.rule("G-35")
def test_several_connections_of_one_participant_are_one_presence() -> None:
    harness = PodHarness("a", "b", multiple=["b"])
    a = harness.join("a")
    one, two = harness.join("b"), harness.join("b")
    assert a.kinds.count("system/presence") == 1
    id = harness.send(one)
    assert one.ids[-1] == two.ids[-1] == id
    assert [each["id"] for each in two.welcome["participants"]] == ["a", "b"]
    harness.leave(one)
    assert a.kinds.count("system/presence") == 1
    harness.leave(two)
    assert a.kinds.count("system/presence") == 2


@pytest.mark.rule("G-12")
@pytest.mark.parametrize("limits", [{"history_messages": 0}, {"history_bytes": 0}])
def test_without_a_history_all_is_live_and_nothing_resumes(limits: dict[str, int]) -> None:
    harness = PodHarness("a", "b", limits={**FREE, **limits})
    a = harness.join("a")
    id = harness.send(a)
    b = harness.join("b", after=id, last=10)
    assert (b.welcome["resumed"], b.welcome["replayed"]) == (False, 0)
    again = harness.send(a, id=id)
    assert b.ids[1:] == [again]


def test_a_long_absence_is_replayed_whole_whatever_the_outbox() -> None:
    harness = PodHarness("a", "b", limits={**FREE, "outbox_bytes": 4096})
    a = harness.join("a")
    start = harness.send(a)
    sent = [harness.send(a, payload="x" * 500) for _ in range(200)]
    b = harness.join("b", after=start, behind=True)
    while b.session.audience is None:
        harness.catch_up(b, 4096)
    assert [id for id in b.ids if id.startswith("m-")] == sent
    assert b.closed is None


@pytest.mark.rule("G-31")
def test_codes_below_4500_allow_reconnecting_and_the_others_do_not() -> None:
    again = {effects.DRAINING, effects.SLOW_READER, effects.POSITION_LOST}
    final = {effects.REPLACED, effects.REVOKED}
    assert again == {4000, 4001, 4002}
    assert final == {4500, 4501}


def test_leaving_while_behind_tells_the_others() -> None:
    harness = PodHarness("a", "b")
    a = harness.join("a")
    harness.leave(harness.join("b", behind=True))
    assert a.last["payload"]["event"] == "leave"


def test_the_pod_closes_no_session_for_what_it_sent() -> None:
    harness = PodHarness("a")
    a = harness.join("a")
    for data in (b"", b"\x00", b"{}", b"[]", b"\xff\xfe", text("x", "b"), b"[" * 100_000):
        effect = harness.pod.receive(a.session, data, harness.now)
        assert effect is not None
        assert not isinstance(effect, Close)


@pytest.mark.rule("G-49")
@pytest.mark.parametrize(
    ("limits", "joins"),
    [
        ({"messages_per_second": 1, "burst": 1}, 100),
        ({"messages_per_second": 10_000, "burst": 2_000}, 500),
        ({"messages_per_second": 0}, None),
    ],
)
def test_where_more_messages_are_allowed_more_joins_are(
    limits: dict[str, int], joins: int | None
) -> None:
    harness = PodHarness("m", limits=limits, multiple=["m"])
    allowed = 0
    while harness.pod.members.join_wait("m", harness.now) == 0 and allowed < 1_000:
        harness.join("m")
        allowed += 1
    assert allowed == (joins or 1_000)
