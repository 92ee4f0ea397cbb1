"""Coming and going: welcome, replay, resume, presence, takeover, falling behind."""

import pytest

from mcpp import filters
from mcpp_gateway.core import effects
from mcpp_gateway.core.effects import Close, Move
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.system_envelopes import MAX_WELCOME_BYTES
from tests.gateway.stage import FREE, Stage, text


@pytest.mark.rule("G-10")
def test_the_welcome_comes_first_and_says_who_what_and_where() -> None:
    stage = Stage("a", "b", capabilities={"b": [{"kind": "chat"}]})
    a = stage.join("a")
    stage.send(a, context={"id": "c", "type": "t", "parent": "p"})
    b = stage.join("b")
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
    assert welcome["pod"] == {"name": "stage", "epoch": stage.pod.epoch}
    assert welcome["limits"]["burst"] == PodLimits().burst
    assert set(welcome["limits"]) == set(PodLimits.__struct_fields__)
    assert welcome["contexts"] == [
        {"id": "p", "messages": 0},
        {"id": "c", "type": "t", "parent": "p", "messages": 1},
    ]
    assert (welcome["resumed"], welcome["replayed"]) == (False, 0)


@pytest.mark.rule("G-10", "G-12")
def test_whoever_is_cut_off_before_anything_came_resumes_from_the_welcomes_position() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    stage.send(a)
    b = stage.join("b")
    stage.leave(b)
    missed = stage.send(a)
    b = stage.join("b", after=b.welcome["position"])
    assert b.welcome["resumed"] is True
    assert b.ids[1:] == [missed]


@pytest.mark.rule("G-11")
def test_a_welcome_stays_in_bounds_and_leaves_out_the_oldest_contexts_first() -> None:
    limits = {**FREE, "max_contexts_per_participant": 5000}
    stage = Stage("a", "b", limits=limits)
    a = stage.join("a")
    for i in range(5000):
        stage.send(a, context={"id": f"{i:0100}"})
    b = stage.join("b")
    assert len(b.texts[0]) <= MAX_WELCOME_BYTES
    assert b.welcome["more"] is True
    contexts = b.welcome["contexts"]
    assert 2000 < len(contexts) < 5000
    assert [int(each["id"]) for each in contexts] == list(range(4999, 4999 - len(contexts), -1))


@pytest.mark.rule("G-11")
def test_capabilities_are_left_out_before_ids() -> None:
    ids = [f"p{i}" for i in range(40)]
    fat = [{"kind": "x" * 10_000}]
    stage = Stage("a", *ids, capabilities=dict.fromkeys(ids, fat))
    for id in ids:
        stage.join(id)
    a = stage.join("a")
    assert len(a.texts[0]) <= MAX_WELCOME_BYTES
    assert [each["id"] for each in a.welcome["participants"]] == [*ids, "a"]
    bare = [each for each in a.welcome["participants"] if "capabilities" not in each]
    assert 10 < len(bare) < 40
    assert a.welcome["more"] is True


@pytest.mark.rule("G-11")
def test_where_not_even_the_ids_fit_the_latest_are_left_out() -> None:
    ids = [f"{i:064}" for i in range(4000)]
    stage = Stage(*ids)
    for id in ids:
        stage.join(id, behind=True)
    last = stage.join(ids[-1])
    assert len(last.texts[0]) <= MAX_WELCOME_BYTES
    listed = [each["id"] for each in last.welcome["participants"]]
    assert listed == ids[: len(listed)]
    assert last.welcome["you"]["id"] == ids[-1]
    assert last.welcome["more"] is True


@pytest.mark.rule("G-11")
def test_a_welcome_in_which_all_fits_does_not_speak_of_more() -> None:
    stage = Stage("a")
    assert "more" not in stage.join("a").welcome


@pytest.mark.rule("G-12", "F-10")
def test_a_stream_resumes_right_behind_the_named_envelope() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    for id in "12345":
        stage.send(a, id=id, kind="even" if id in "24" else "odd")
    b = stage.join("b", after="2")
    assert b.welcome["resumed"] is True
    assert b.welcome["replayed"] == 3
    assert b.ids[1:] == ["3", "4", "5"]
    stage.leave(b)
    b = stage.join("b", after="2", filter=filters.kind("even"))
    assert b.welcome["replayed"] == 1
    assert b.ids[1:] == ["4"]


@pytest.mark.rule("G-12")
@pytest.mark.parametrize(("last", "replayed"), [(None, []), (2, ["4", "5"]), (0, [])])
def test_an_unknown_position_is_told_and_last_counts_then(
    last: int | None, replayed: list[str]
) -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    for id in "12345":
        stage.send(a, id=id)
    b = stage.join("b", after="gone \ud800", last=last)
    assert b.welcome["resumed"] is False
    assert b.ids[1:] == replayed
    assert b.welcome["replayed"] == len(replayed)


@pytest.mark.rule("G-12", "G-36")
def test_a_presence_is_a_position_and_an_error_is_none() -> None:
    stage = Stage("a", "b", "c")
    a = stage.join("a")
    stage.join("c")
    presence = a.last["id"]
    stage.send(a, "system/x")
    error = a.last["id"]
    stage.send(a, id="1")
    assert stage.join("b", after=presence).welcome["resumed"] is True
    again = stage.join("b", after=error)
    assert again.welcome["resumed"] is False
    assert stage.join("b", after=a.seen[0]["id"]).welcome["resumed"] is False


@pytest.mark.rule("G-13")
def test_last_counts_what_passes_the_filter() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    for i in range(600):
        stage.send(a, id=str(i), kind="rare" if i % 100 == 0 else "often")
    b = stage.join("b", last=3, filter=filters.kind("rare") & ~filters.sender("b"))
    # The gateway's own broadcasts pass every filter: here, none is among the last.
    assert b.ids[1:] == ["300", "400", "500"]
    assert b.welcome["replayed"] == 3


@pytest.mark.rule("G-13")
def test_last_is_ignored_where_the_stream_resumes() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    for id in "12345":
        stage.send(a, id=id)
    assert stage.join("b", after="1", last=1).ids[1:] == ["2", "3", "4", "5"]


@pytest.mark.rule("G-14")
def test_replayed_presence_is_of_others_and_changes_no_roster() -> None:
    stage = Stage("a", "b", "c")
    a = stage.join("a")
    stage.send(a, id="start")
    stage.leave(stage.join("b"))
    stage.leave(stage.join("c"))
    b = stage.join("b", after="start")
    about = [envelope["payload"]["participant"]["id"] for envelope in b.seen[1:]]
    assert about == ["c", "c"]
    assert b.welcome["replayed"] == 2
    assert [each["id"] for each in b.welcome["participants"]] == ["a", "b"]


@pytest.mark.rule("G-14")
def test_what_comes_after_the_counted_envelopes_is_live() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    stage.send(a, id="1")
    stage.send(a, id="2")
    b = stage.join("b", last=10, behind=True)
    stage.send(a, id="3")
    while b.session.audience is None:
        stage.catch_up(b)
    history = b.ids[1 : 1 + b.welcome["replayed"]]
    assert history[-2:] == ["1", "2"]
    assert b.ids[1 + b.welcome["replayed"] :] == ["3"]


@pytest.mark.rule("G-15")
def test_replay_comes_in_pieces_of_about_the_size_asked_for() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    for _ in range(100):
        stage.send(a, payload="x" * 1000)
    b = stage.join("b", last=100, behind=True)
    pieces = []
    while b.session.audience is None:
        count = len(b.texts)
        stage.catch_up(b, 10_000)
        pieces.append(sum(map(len, b.texts[count:])))
    assert max(pieces) < 13_000
    assert len(b.texts) == 101


@pytest.mark.rule("G-15")
def test_a_replay_that_passes_nothing_still_lets_others_have_their_turn() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    for _ in range(1000):
        stage.send(a)
    b = stage.join("b", after=a.ids[1], filter=~filters.everything, behind=True)
    rounds = 0
    while b.session.audience is None:
        stage.catch_up(b, 65_536)
        rounds += 1
    assert rounds >= 4


@pytest.mark.rule("G-15", "G-33")
def test_whoever_the_log_has_left_behind_is_closed_and_leaves() -> None:
    stage = Stage("a", "b", limits={**FREE, "history_messages": 4})
    a = stage.join("a")
    b = stage.join("b", behind=True)
    stage.catch_up(b, 1)
    for _ in range(5):
        stage.send(a)
    stage.catch_up(b)
    assert b.closed == 4002
    assert a.last["payload"]["event"] == "leave"
    assert stage.pod.participants == ("a",)


@pytest.mark.rule("G-15", "G-38")
def test_a_session_goes_live_only_with_nothing_left_to_send() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    stage.send(a)
    session, _ = stage.pod.join("b", stage.now, last=1)
    texts, effect = stage.pod.catch_up(session, 1 << 20)
    assert len(texts) == 2
    assert effect is None
    assert isinstance(stage.pod.catch_up(session, 1 << 20)[1], Move)


@pytest.mark.rule("G-16")
def test_the_epoch_is_the_logs_and_the_same_for_all() -> None:
    stage = Stage("a", "b")
    one = stage.join("a").welcome["pod"]["epoch"]
    stage.tick(10_000)
    assert stage.join("b").welcome["pod"]["epoch"] == one
    other = Stage("a")
    other.pod.epoch = "another"
    assert other.join("a").welcome["pod"]["epoch"] == "another"


@pytest.mark.rule("G-17", "G-30")
def test_what_is_answered_during_the_replay_keeps_its_place() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    for id in "12":
        stage.send(a, id=id)
    b = stage.join("b", after="1", behind=True)
    stage.send(b, "system/x", id="bad")
    stage.send(a, id="3")
    stage.send(b, id="4")
    stage.send(b, id="4")
    stage.send(a, id="5")
    while b.session.audience is None:
        stage.catch_up(b, 1)
    assert b.ids[1] == "2"
    assert b.seen[2]["correlation_id"] == "bad"
    assert b.ids[3:] == ["3", "4", "4", "5"]


@pytest.mark.rule("G-17", "F-12")
def test_a_filter_changed_during_the_replay_begins_where_it_was_asked_for() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    for id in "12":
        stage.send(a, id=id)
    b = stage.join("b", after="1", behind=True)
    stage.send(b, "pod/filter", id="ask", payload={"filter": {"kind": "rare"}})
    stage.send(a, id="3")
    stage.send(a, "rare", id="4")
    while b.session.audience is None:
        stage.catch_up(b, 1)
    stage.send(a, id="5")
    stage.send(a, "rare", id="6")
    shown = [envelope.get("correlation_id", envelope["id"]) for envelope in b.seen[1:]]
    assert shown == ["2", "ask", "4", "6"]


@pytest.mark.rule("G-39", "G-33")
def test_what_waits_for_its_place_is_bounded() -> None:
    limits = {**FREE, "outbox_bytes": 4000}
    stage = Stage("a", "b", limits=limits)
    a = stage.join("a")
    b = stage.join("b", behind=True)
    sent = 0
    while b.closed is None:
        stage.send(b, "system/x")
        sent += 1
    assert b.closed == 4001
    assert sent < 20
    assert a.last["payload"]["event"] == "leave"


@pytest.mark.rule("G-33")
def test_the_others_are_told_who_comes_and_goes_whatever_they_filter() -> None:
    stage = Stage("a", "b", capabilities={"b": [{"kind": "chat"}]})
    a = stage.join("a", filter=~filters.everything)
    b = stage.join("b")
    about = {"id": "b", "capabilities": [{"kind": "chat"}]}
    assert a.last["kind"] == "system/presence"
    assert a.last["payload"] == {"event": "join", "participant": about}
    assert "system/presence" not in b.kinds
    stage.leave(b)
    assert a.last["payload"] == {"event": "leave", "participant": about}
    count = len(a.texts)
    stage.leave(b)
    assert len(a.texts) == count


@pytest.mark.rule("G-36")
def test_presence_is_logged_and_replayed() -> None:
    stage = Stage("a", "b", "c")
    stage.join("a")
    b = stage.join("b")
    stage.leave(b)
    c = stage.join("c", last=10)
    assert [envelope["payload"]["event"] for envelope in c.seen[1:]] == ["join", "join", "leave"]


@pytest.mark.rule("G-34")
def test_a_newer_connection_takes_over_without_a_word_to_others() -> None:
    stage = Stage("a", "b")
    b = stage.join("b")
    old = stage.join("a")
    count = len(b.texts)
    new = stage.join("a")
    assert old.closed == 4500
    assert len(b.texts) == count
    shown = len(old.texts)
    stage.send(b)
    assert len(old.texts) == shown
    assert new.ids[-1] == b.ids[-1]
    stage.leave(old)
    assert stage.pod.participants == ("b", "a")


@pytest.mark.rule("G-34")
def test_a_connection_that_is_still_behind_can_be_taken_over_too() -> None:
    stage = Stage("a")
    old = stage.join("a", behind=True)
    new = stage.join("a")
    assert old.closed == 4500
    assert stage.send(new) == new.ids[-1]


@pytest.mark.rule("G-35")
def test_several_connections_of_one_participant_are_one_presence() -> None:
    stage = Stage("a", "b", multiple=["b"])
    a = stage.join("a")
    one, two = stage.join("b"), stage.join("b")
    assert a.kinds.count("system/presence") == 1
    id = stage.send(one)
    assert one.ids[-1] == two.ids[-1] == id
    assert [each["id"] for each in two.welcome["participants"]] == ["a", "b"]
    stage.leave(one)
    assert a.kinds.count("system/presence") == 1
    stage.leave(two)
    assert a.kinds.count("system/presence") == 2


@pytest.mark.rule("G-12")
@pytest.mark.parametrize("limits", [{"history_messages": 0}, {"history_bytes": 0}])
def test_without_a_history_all_is_live_and_nothing_resumes(limits: dict[str, int]) -> None:
    stage = Stage("a", "b", limits={**FREE, **limits})
    a = stage.join("a")
    id = stage.send(a)
    b = stage.join("b", after=id, last=10)
    assert (b.welcome["resumed"], b.welcome["replayed"]) == (False, 0)
    again = stage.send(a, id=id)
    assert b.ids[1:] == [again]


def test_a_long_absence_is_replayed_whole_whatever_the_outbox() -> None:
    stage = Stage("a", "b", limits={**FREE, "outbox_bytes": 4096})
    a = stage.join("a")
    start = stage.send(a)
    sent = [stage.send(a, payload="x" * 500) for _ in range(200)]
    b = stage.join("b", after=start, behind=True)
    while b.session.audience is None:
        stage.catch_up(b, 4096)
    assert [id for id in b.ids if id.startswith("m-")] == sent
    assert b.closed is None


@pytest.mark.rule("G-31")
def test_codes_below_4500_say_reconnect_and_the_others_do_not() -> None:
    again = {effects.DRAINING, effects.SLOW_READER, effects.FELL_BEHIND}
    final = {effects.REPLACED, effects.REVOKED}
    assert again == {4000, 4001, 4002}
    assert final == {4500, 4501}


def test_leaving_while_behind_tells_the_others() -> None:
    stage = Stage("a", "b")
    a = stage.join("a")
    stage.leave(stage.join("b", behind=True))
    assert a.last["payload"]["event"] == "leave"


def test_the_pod_closes_nobody_for_what_it_was_sent() -> None:
    stage = Stage("a")
    a = stage.join("a")
    for data in (b"", b"\x00", b"{}", b"[]", b"\xff\xfe", text("x", "b"), b"[" * 100_000):
        effect = stage.pod.receive(a.session, data, stage.now)
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
    stage = Stage("m", limits=limits, multiple=["m"])
    allowed = 0
    while stage.pod.join_wait("m", stage.now) == 0 and allowed < 1_000:
        stage.join("m")
        allowed += 1
    assert allowed == (joins or 1_000)
