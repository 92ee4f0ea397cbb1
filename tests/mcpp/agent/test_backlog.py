"""What waits for an agent's handlers."""

import pytest

from mcpp.agent.backlog import Backlog

pytestmark = pytest.mark.anyio


async def test_work_is_taken_in_order_and_makes_room() -> None:
    backlog = Backlog[str](max_messages=2)
    assert [backlog.put(work, 1) for work in "abc"] == [True, True, False]
    assert await backlog.take() == "a"
    assert backlog.put("c", 1)
    assert [await backlog.take() for _ in range(2)] == ["b", "c"]


async def test_large_messages_count_by_their_size() -> None:
    backlog = Backlog[str](max_bytes=100)
    assert backlog.put("a", 101)  # into an empty queue, or it would never pass
    assert not backlog.put("b", 1)
    await backlog.take()
    assert backlog.put("a", 60)
    assert not backlog.put("b", 60)
    await backlog.take()
    assert backlog.put("b", 60)


async def test_a_gap_can_be_queued_when_the_backlog_is_full() -> None:
    backlog = Backlog[str](max_messages=1)
    backlog.put("a", 1)
    assert not backlog.put("b", 1)
    backlog.put_anyway("gap")
    assert [await backlog.take() for _ in range(2)] == ["a", "gap"]
