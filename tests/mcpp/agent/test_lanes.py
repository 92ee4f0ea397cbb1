"""What waits for an agent's handlers, and in which order it runs."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from mcpp.agent.lanes import Lane


def test_a_lane_runs_one_after_another_in_order_and_makes_room() -> None:
    lane = Lane[str](max_messages=2)
    assert [lane.put(work, work, 1) for work in "abc"] == [True, True, False]
    assert lane.full
    assert lane.take() == ("a", "a")
    assert lane.put("c", "c", 1)
    assert lane.take() is None
    lane.finish("a")
    assert lane.take() == ("b", "b")


def test_large_messages_count_by_their_size() -> None:
    lane = Lane[str](limit=9, max_bytes=100)
    assert lane.put(1, "a", 101)  # while none waits, or it would never pass
    assert not lane.put(2, "b", 1)
    lane.take()
    assert lane.put(3, "a", 60)
    assert not lane.put(4, "b", 60)


@given(
    limit=st.integers(1, 4),
    steps=st.lists(st.sampled_from("abcd") | st.integers(0, 9), max_size=60),
)
def test_keys_run_in_order_and_beside_each_other(limit: int, steps: list[str | int]) -> None:
    """A letter adds work with this key, a number ends one of what runs."""
    lane = Lane[int](limit)
    added: dict[str, list[int]] = defaultdict(list)
    began: dict[str, list[int]] = defaultdict(list)
    running: list[str] = []
    for number, step in enumerate(steps):
        if isinstance(step, str):
            assert lane.put(step, number, 1)
            added[step].append(number)
        elif running:
            lane.finish(running.pop(step % len(running)))
        while (taken := lane.take()) is not None:
            key, work = taken
            assert isinstance(key, str)
            began[key].append(work)
            running.append(key)
        assert len(running) == len(set(running)) <= limit
        # No place stays free while the work of another key waits.
        waits = {key for key in added if len(began[key]) < len(added[key])}
        assert len(running) == limit or waits <= set(running)
    assert all(began[key] == added[key][: len(began[key])] for key in added)
