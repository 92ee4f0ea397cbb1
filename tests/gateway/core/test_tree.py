"""The tree of live contexts, without a pod."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp.protocol.envelope import Context
from mcpp_gateway.core.contexts.live_context import LiveContext
from mcpp_gateway.core.contexts.tree import (
    CYCLE,
    DEPTH_EXCEEDED,
    LIMIT,
    PARENT_CHANGED,
    LiveContexts,
)
from mcpp_gateway.core.limits import PodLimits


class Grove:
    """A tree that enters every accepted context at once."""

    def __init__(self, **limits: int) -> None:
        self.tree = LiveContexts(PodLimits(**{"context_messages_per_second": 0, **limits}))
        self.now = 0.0

    def enter(
        self, id: str, parent: str | None = None, type: str | None = None, by: str = "a"
    ) -> str | None:
        context = Context(id=id, type=type, parent=parent)
        node = self.tree.find(context, by)
        if node is not None:
            self.tree.enter(node, by, self.now)
            return None
        place = self.tree.check(context, by, self.now)
        if isinstance(place, str):
            return place
        self.tree.open(place, by, self.now)
        return None

    @property
    def nodes(self) -> dict[str, LiveContext]:
        return {node.id: node for node in self.tree}


@pytest.mark.rule("C-03")
def test_a_parent_once_fixed_stays() -> None:
    grove = Grove()
    assert grove.enter("c", "p") is None
    assert grove.enter("c", "q") == PARENT_CHANGED
    assert grove.enter("c", "p") is None
    assert grove.enter("c") is None
    assert set(grove.nodes) == {"c", "p"}


@pytest.mark.rule("C-02")
def test_type_and_parent_are_each_fixed_by_the_creators_first_envelope_that_names_one() -> None:
    grove = Grove()
    grove.enter("c")
    grove.enter("c", type="t")
    grove.enter("c", "p", type="other")
    node = grove.nodes["c"]
    assert node.type == "t"
    assert node.parent is grove.nodes["p"]
    assert node.lineage.ancestors == ("p",)


@pytest.mark.rule("C-02", "C-03", "C-06")
def test_what_others_name_changes_nothing_and_creates_no_placeholder() -> None:
    grove = Grove()
    grove.enter("c")
    for parent in ("q", "c"):
        assert grove.enter("c", parent, type="t", by="b") is None
    node = grove.nodes["c"]
    assert (set(grove.nodes), node.type, node.parent, node.creator) == ({"c"}, None, None, "a")
    assert grove.enter("c", "p", type="t") is None
    assert grove.enter("c", "q", by="b") is None
    assert (node.type, node.lineage.ancestors) == ("t", ("p",))


@pytest.mark.rule("C-04")
def test_an_unknown_parent_is_a_placeholder_that_may_be_filled_in_later() -> None:
    grove = Grove()
    grove.enter("c", "p")
    placeholder = grove.nodes["p"]
    assert (placeholder.depth, placeholder.type, placeholder.messages) == (1, None, 0)
    assert (placeholder.creator, placeholder.holder) == (None, "a")
    grove.enter("p", "g", type="t", by="b")
    assert placeholder.type == "t"
    assert (placeholder.creator, placeholder.holder) == ("b", "b")
    assert grove.nodes["g"].holder == "b"
    assert grove.nodes["c"].lineage.ancestors == ("p", "g")
    assert [grove.nodes[id].depth for id in ("g", "p", "c")] == [1, 2, 3]


@pytest.mark.rule("C-05")
def test_a_chain_from_the_root_down_is_refused_at_the_depth() -> None:
    grove = Grove(max_context_depth=3)
    assert grove.enter("1") is None
    assert grove.enter("2", "1") is None
    assert grove.enter("3", "2") is None
    assert grove.enter("4", "3") == DEPTH_EXCEEDED


@pytest.mark.rule("C-05")
def test_a_chain_from_the_leaf_up_is_refused_at_the_same_depth() -> None:
    grove = Grove(max_context_depth=3)
    assert grove.enter("3", "2") is None
    assert grove.enter("2", "1") is None
    assert grove.enter("1", "0") == DEPTH_EXCEEDED
    assert grove.enter("1") is None


@pytest.mark.rule("C-05")
def test_two_chains_may_not_be_joined_to_one_too_long() -> None:
    grove = Grove(max_context_depth=4)
    for id, parent in (("b", "a"), ("c", "b"), ("y", "x")):
        assert grove.enter(id, parent) is None
    assert grove.enter("a", "y") == DEPTH_EXCEEDED
    assert grove.enter("a", "x") is None


@pytest.mark.rule("C-05")
def test_a_branch_that_has_expired_no_longer_counts_as_depth() -> None:
    grove = Grove(max_context_depth=3, context_idle_seconds=10)
    grove.enter("c", "b")
    grove.enter("b", "a")
    grove.now = 8
    grove.enter("d", "a")
    assert grove.enter("a", "0") == DEPTH_EXCEEDED
    assert [node.id for node in grove.tree.expire(10)] == ["c", "b"]
    grove.now = 11
    assert grove.enter("a", "0") is None
    assert grove.nodes["d"].depth == 3


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("depth", [0, 1])
def test_a_depth_of_none_or_one_is_kept(depth: int) -> None:
    grove = Grove(max_context_depth=depth)
    assert grove.enter("c") == (None if depth else DEPTH_EXCEEDED)
    assert grove.enter("d", "c") == DEPTH_EXCEEDED


@pytest.mark.rule("C-06")
def test_no_context_becomes_its_own_ancestor() -> None:
    grove = Grove()
    assert grove.enter("c", "c") == CYCLE
    grove.enter("c", "b")
    grove.enter("b", "a")
    assert grove.enter("a", "a") == CYCLE
    assert grove.enter("a", "b") == CYCLE
    assert grove.enter("a", "c") == CYCLE
    assert grove.enter("a") is None


@pytest.mark.rule("C-06", "G-20")
def test_a_cycle_is_reported_before_a_changed_parent() -> None:
    grove = Grove()
    grove.enter("c", "b")
    grove.enter("b", "a")
    assert grove.enter("b", "b") == CYCLE
    assert grove.enter("b", "c") == CYCLE
    assert grove.enter("b", "x") == PARENT_CHANGED


@pytest.mark.rule("C-07")
def test_a_participants_cap_counts_placeholders_and_is_all_or_nothing() -> None:
    grove = Grove(max_contexts_per_participant=3)
    assert grove.enter("c", "p") is None
    assert grove.enter("d", "q") == LIMIT
    assert set(grove.nodes) == {"c", "p"}
    assert grove.enter("d", "p") is None
    assert grove.enter("p", "q") == LIMIT
    assert grove.enter("d") is None
    assert grove.enter("e", by="b") is None


@pytest.mark.rule("C-07")
def test_a_pods_cap_holds_over_all_participants() -> None:
    grove = Grove(max_contexts_per_pod=3)
    assert grove.enter("1", by="a") is None
    assert grove.enter("2", by="b") is None
    assert grove.enter("4", "3", by="c") == LIMIT
    assert grove.enter("3", by="c") is None
    assert grove.enter("4", by="d") == LIMIT


@pytest.mark.rule("C-07")
@pytest.mark.parametrize("cap", ["max_contexts_per_participant", "max_contexts_per_pod"])
def test_a_cap_of_zero_means_none(cap: str) -> None:
    assert Grove(**{cap: 0}).enter("c") == LIMIT


@pytest.mark.rule("G-11")
def test_the_latest_created_come_first() -> None:
    grove = Grove()
    for id in "abc":
        grove.enter(id)
    grove.enter("a")
    assert [node.id for node in grove.tree] == ["c", "b", "a"]


@pytest.mark.rule("K-10")
def test_asking_where_an_envelope_would_stand_changes_nothing() -> None:
    grove = Grove()
    grove.enter("c", "p", type="t")
    for context in (
        Context(id="c", type="x", parent="y"),
        Context(id="new", type="t", parent="c"),
        Context(id="p", parent="c"),
        Context(id="self", parent="self"),
    ):
        grove.tree.lineage(context, "a")
        grove.tree.check(context, "a", 0.0)
    assert set(grove.nodes) == {"c", "p"}
    where = grove.tree.lineage(Context(id="new", type="n", parent="c"), "a")
    assert (where.id, where.type, where.ancestors) == ("new", "n", ("c", "p"))
    fixed = grove.tree.lineage(Context(id="c", type="x", parent="y"), "a")
    assert (fixed.type, fixed.ancestors) == ("t", ("p",))


@pytest.mark.rule("G-47")
def test_being_refused_for_depth_again_and_again_does_not_walk_the_tree_again() -> None:
    grove = Grove(max_context_depth=2, max_contexts_per_participant=10_000)

    class Counted(set[LiveContext]):
        walks = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            Counted.walks += 1
            return super().__iter__()

    for i in range(1000):
        grove.enter(str(i), "root")
    root = grove.nodes["root"]
    root.children = Counted(root.children)
    for _ in range(100):
        assert grove.enter("root", "above") == DEPTH_EXCEEDED
    assert Counted.walks <= 1


@pytest.mark.rule("C-10")
def test_contexts_of_all_depths_expire_in_one_go_children_first() -> None:
    grove = Grove(context_idle_seconds=1)
    for id, parent in (("d", "c"), ("c", "b"), ("b", "a"), ("e", "b"), ("f", "a")):
        grove.enter(id, parent)
    parents = {node.id: node.parent.id for node in grove.tree if node.parent is not None}
    order = [node.id for node in grove.tree.expire(1)]
    assert sorted(order) == list("abcdef")
    for id, parent in parents.items():
        assert order.index(id) < order.index(parent)
    assert len(grove.tree) == 0
    assert grove.tree.expire(1_000_000) == []


# --- holders --------------------------------------------------------------------------------------


@pytest.mark.rule("C-08")
def test_a_context_passes_to_the_last_sender_when_its_creator_is_idle() -> None:
    grove = Grove(context_idle_seconds=10)
    grove.enter("p")
    grove.enter("c", "p")
    grove.now = 4
    grove.enter("c", by="b")
    grove.now = 6
    grove.enter("c", by="d")
    assert grove.tree.expire(9.999) == []
    assert [node.holder for node in grove.tree] == ["a", "a"]
    assert grove.tree.expire(10) == []
    assert [node.holder for node in grove.tree] == ["d", "d"]
    assert grove.tree.expire(15.999) == []
    assert [node.id for node in grove.tree.expire(16)] == ["c", "p"]


@pytest.mark.rule("C-08")
def test_a_creator_that_returns_is_charged_again() -> None:
    grove = Grove(context_idle_seconds=10)
    grove.enter("c")
    grove.now = 9
    grove.enter("c", by="b")
    grove.now = 12
    grove.tree.expire(12)
    assert grove.nodes["c"].holder == "b"
    grove.enter("c")
    assert grove.nodes["c"].holder == "a"
    assert grove.tree.expire(21.999) == []
    assert len(grove.tree.expire(22)) == 1


@pytest.mark.rule("C-08", "C-10")
def test_an_envelope_of_a_sender_at_its_cap_is_accepted_but_prolongs_nothing() -> None:
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=2)
    grove.enter("c")
    grove.now = 5
    for id in ("1", "2", "c"):
        assert grove.enter(id, by="b") is None
    assert [node.id for node in grove.tree.expire(10)] == ["c"]
    assert grove.nodes.keys() == {"1", "2"}


@pytest.mark.rule("C-08")
def test_of_several_senders_the_last_with_room_is_charged() -> None:
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=1)
    grove.enter("c")
    grove.now = 4
    grove.enter("c", by="b")
    grove.now = 5
    grove.enter("c", by="d")
    grove.enter("full", by="d")
    assert grove.tree.expire(10) == []
    assert grove.nodes["c"].holder == "b"
    assert [node.id for node in grove.tree.expire(14)] == ["c"]


@pytest.mark.rule("C-08", "P-19")
@pytest.mark.parametrize("revived", [False, True])
def test_answering_does_not_charge_for_the_placeholders_of_others(revived: bool) -> None:
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=8)
    for i in range(4):
        grove.enter(f"c{i}", f"placeholder{i}")
    if revived:
        grove.now = 20
        grove.tree.expire(grove.now)
    grove.now += 9
    for i in range(4):
        grove.enter(f"c{i}", by="tool")
    grove.now += 4
    grove.tree.expire(grove.now)
    assert {node.holder for node in grove.tree if node.creator is None} == {None}
    for i in range(8):
        assert grove.enter(f"own{i}", by="tool") is None


@pytest.mark.rule("C-08")
def test_a_placeholder_counts_again_against_the_one_that_named_it() -> None:
    grove = Grove(context_idle_seconds=10)
    grove.enter("c", "placeholder")
    grove.now = 9
    grove.enter("c", by="b")
    grove.now = 12
    grove.tree.expire(grove.now)
    assert grove.nodes["placeholder"].holder is None
    grove.enter("c", by="b")
    assert grove.nodes["placeholder"].holder is None
    grove.enter("c")
    assert grove.nodes["placeholder"].holder == "a"


@settings(max_examples=60)
@given(seed=st.integers(0, 1 << 32))
@pytest.mark.rule("C-08", "C-16")
def test_whatever_others_do_a_participant_may_open_as_many_as_its_cap(seed: int) -> None:
    chosen = random.Random(seed)
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=3)
    opened: dict[str, float] = {}  # by the tool itself
    for _ in range(150):
        step = chosen.choice(["wait", "other", "other", "other", "answer", "answer", "open"])
        if step == "wait":
            grove.now += chosen.choice([1, 4, 11])
            grove.tree.expire(grove.now)
        elif step == "other":
            parent = chosen.choice([None, *"pqrstuvw"])
            grove.enter(chosen.choice("cdefghp"), parent, by="other")
        elif step == "answer":
            live = [node.id for node in grove.tree if node.creator == "other"]
            if live:
                assert grove.enter(chosen.choice(live), by="tool") is None
        else:
            id = f"tool{len(opened)}"
            active = [each for each, last in opened.items() if grove.now - last < 10]
            refusal = grove.enter(id, by="tool")
            assert refusal is None or len(active) >= 3
            if refusal is None:
                opened[id] = grove.now


@pytest.mark.rule("C-08", "P-19")
def test_answering_in_contexts_of_others_leaves_room_for_ones_own() -> None:
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=4)
    for i in range(4):
        grove.enter(str(i))
    grove.now = 9
    for i in range(4):
        grove.enter(str(i), by="tool")
    assert grove.tree.expire(13) == []
    grove.now = 13
    assert [node.holder for node in grove.tree] == ["tool"] * 4
    for i in range(4):
        assert grove.enter(f"own{i}", by="tool") is None
    assert grove.enter("own4", by="tool") == LIMIT
    assert [node.id for node in grove.tree if node.holder == "tool"] == [
        "own3", "own2", "own1", "own0",
    ]  # fmt: skip


@pytest.mark.rule("C-08")
def test_a_context_given_up_for_ones_own_passes_to_the_sender_before() -> None:
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=1)
    grove.enter("c")
    for grove.now, sender in ((4, "b"), (5, "d")):
        grove.enter("c", by=sender)
    grove.tree.advance(10)
    assert grove.nodes["c"].holder == "d"
    grove.now = 11
    grove.enter("own", by="d")
    assert grove.nodes["c"].holder == "b"
    assert grove.tree.expire(13.999) == []
    assert [node.id for node in grove.tree.expire(14)] == ["c"]


@pytest.mark.rule("C-08")
def test_children_of_another_do_not_use_up_the_cap_of_a_parents_creator() -> None:
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=2)
    grove.enter("p")
    grove.enter("q")
    grove.enter("1", "p", by="b")
    grove.enter("2", "q", by="b")
    for now in (5, 10, 15):
        grove.now = now
        grove.enter("1", by="b")
        grove.enter("2", by="b")
        assert grove.tree.expire(now) == []
    assert [grove.nodes[id].holder for id in "pq12"] == [None, None, "b", "b"]
    assert grove.enter("r", "s") is None
    assert [node.id for node in grove.tree.expire(25)][:4] == ["1", "p", "2", "q"]


@pytest.mark.rule("C-07", "C-08", "C-12", "P-19")
def test_a_sender_at_its_cap_revives_contexts_of_others_without_holding_them() -> None:
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=2)
    for id in ("1", "2"):
        grove.enter(id, parent=f"above{id}", by=id)
    grove.now = 10
    grove.tree.expire(10)
    for id in ("own1", "own2"):
        assert grove.enter(id, by="tool") is None
    assert grove.enter("1", by="tool") is None
    assert [(node.id, node.holder) for node in grove.tree] == [
        ("1", None), ("above1", None), ("own2", "tool"), ("own1", "tool"),
    ]  # fmt: skip
    assert grove.nodes["1"].creator == "1"
    assert grove.enter("own3", by="tool") == LIMIT
    assert grove.enter("own3", "2", by="tool") == LIMIT
    assert [node.id for node in grove.tree.expire(10.5)] == ["1", "above1"]


@pytest.mark.rule("C-08", "C-12")
def test_contexts_of_others_are_held_where_there_is_room_and_give_way_to_ones_own() -> None:
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=2)
    for id in ("1", "2", "3"):
        grove.enter(id, by=id)
    grove.now = 10
    grove.tree.expire(10)
    for id in ("1", "2", "3"):
        assert grove.enter(id) is None
    assert [grove.nodes[id].holder for id in "123"] == ["a", "a", None]
    assert grove.enter("own") is None
    assert grove.enter("own2") is None
    assert grove.enter("own3") == LIMIT


@pytest.mark.rule("C-07", "C-12")
def test_reviving_contexts_of_others_is_bounded_by_the_pod() -> None:
    grove = Grove(context_idle_seconds=10, max_contexts_per_participant=1, max_contexts_per_pod=3)
    for id in ("1", "2", "3"):
        grove.enter(id, by=id)
    grove.now = 10
    grove.tree.expire(10)
    assert [grove.enter(id) for id in ("own", "1", "2", "3")] == [None, None, None, LIMIT]


# --- dormant contexts -----------------------------------------------------------------------------


@pytest.mark.rule("C-12")
def test_only_the_latest_expired_contexts_are_kept() -> None:
    grove = Grove(context_idle_seconds=1, max_dormant_contexts=2)
    for i in range(4):
        grove.enter(str(i), type="t")
        grove.now += 1
        grove.tree.expire(grove.now)
    for i in (3, 0):
        grove.enter(str(i), by="b")
    assert [(node.id, node.creator) for node in grove.tree] == [("0", "b"), ("3", "a")]


@pytest.mark.rule("C-06", "C-12")
def test_a_revived_context_does_not_close_a_cycle() -> None:
    grove = Grove(context_idle_seconds=1)
    grove.enter("c", "p")
    grove.tree.expire(1)
    grove.now = 2
    assert grove.enter("p", "c") == CYCLE
    assert grove.enter("p", "q") is None
    assert grove.enter("q", "c") == CYCLE
    assert grove.enter("c") is None
    assert grove.nodes["c"].lineage.ancestors == ("p", "q")


@pytest.mark.rule("C-05", "C-12", "G-47")
def test_a_chain_of_dormant_contexts_is_not_followed_beyond_the_depth() -> None:
    grove = Grove(context_idle_seconds=1, max_context_depth=3)
    # Each expires as the root of the one before.
    for i in range(1000):
        grove.enter(str(i), str(i + 1))
        grove.now += 1
        grove.tree.expire(grove.now)

    class CountedContext(dict[str, Any]):
        reads = 0

        def get(self, *args: Any) -> Any:
            CountedContext.reads += 1
            return super().get(*args)

    dormant = CountedContext(getattr(grove.tree, "_dormant"))  # noqa: B009
    setattr(grove.tree, "_dormant", dormant)  # noqa: B010
    assert grove.enter("0") == DEPTH_EXCEEDED
    assert grove.enter("new", "0") == DEPTH_EXCEEDED
    grove.tree.lineage(Context(id="0"), "a")
    assert CountedContext.reads < 30


@pytest.mark.rule("G-47")
def test_naming_a_type_does_not_walk_what_is_below() -> None:
    grove = Grove(max_contexts_per_participant=10_000)
    grove.enter("root")
    for i in range(1000):
        grove.enter(str(i), "root")
    before = {node.id: node.lineage for node in grove.tree}
    grove.enter("root", type="t")
    assert all(node.lineage is before[node.id] for node in grove.tree if node.id != "root")


def test_new_limits_apply_to_the_contexts_that_are_live_and_dormant() -> None:
    grove = Grove(context_idle_seconds=10)
    for id in ("1", "2", "3"):
        grove.enter(id)
    grove.tree.expire(10)
    grove.now = 10
    grove.enter("4")
    grove.tree.reconfigure(PodLimits(context_idle_seconds=2, max_dormant_contexts=1))
    assert [node.id for node in grove.tree.expire(12)] == ["4"]
    assert [state.id for state in grove.tree.snapshot()[1]] == ["4"]


@pytest.mark.rule("L-16", "G-47")
def test_what_a_context_keeps_of_those_who_sent_in_it_is_bounded() -> None:
    grove = Grove()
    names = [f"p{number:03}" for number in range(200)]
    for name in names:
        grove.now += 0.01
        grove.enter("c", by=name)
    (state,), _ = grove.tree.snapshot()
    assert state.messages == 200
    assert list(state.participants) == names[:64]
    assert [id for id, _ in state.heirs] == names[-8:]


@pytest.mark.rule("L-16", "G-47")
def test_dormant_contexts_are_bounded_by_their_size_too() -> None:
    grove = Grove(max_dormant_contexts=100)
    for number in range(300):
        grove.enter(f"{number:0128}", type="t" * 128)
        grove.now += 1000
        grove.tree.expire(grove.now)
    _, dormant = grove.tree.snapshot()
    assert 50 < len(dormant) < 100
    assert dormant[-1].id == f"{299:0128}"
    grove.enter(dormant[0].id, type="t" * 128)
    assert len(grove.tree.snapshot()[1]) == len(dormant) - 1


@pytest.mark.rule("C-10")
def test_many_contexts_expire_a_part_at_a_time_children_first() -> None:
    grove = Grove(max_contexts_per_participant=1000)
    for number in range(10):
        grove.enter(f"parent-{number}")
        grove.enter(f"child-{number}", f"parent-{number}")
    grove.now += 1000
    expired: list[str] = []
    while some := grove.tree.expire(grove.now, 3):
        assert len(some) <= 3
        expired += [node.id for node in some]
    assert sorted(expired) == sorted({*expired})
    assert len(expired) == 20
    assert all(
        expired.index(f"child-{number}") < expired.index(f"parent-{number}") for number in range(10)
    )
