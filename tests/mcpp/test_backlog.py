"""What waits for an agent's handlers."""

from typing import cast

import pytest

import mcpp
from mcpp.backlog import Backlog

pytestmark = pytest.mark.anyio


def message(text: str) -> mcpp.Message:
    envelope = mcpp.new_envelope("chat", {"text": text}, sender="alice")
    return mcpp.Message(cast(mcpp.Pod, None), envelope, False)


async def test_messages_are_taken_in_order_and_make_room() -> None:
    backlog = Backlog[int](max_messages=2)
    first, second, third = (message(text) for text in "abc")
    assert [backlog.put(0, each) for each in (first, second, third)] == [True, True, False]
    assert (await backlog.take())[1] is first
    assert backlog.put(0, third)
    assert [(await backlog.take())[1] for _ in range(2)] == [second, third]


async def test_large_messages_count_by_their_size() -> None:
    backlog = Backlog[int](max_bytes=100)
    assert not backlog.put(0, message("x" * 100))
    assert backlog.put(0, message("x" * 50))
    assert not backlog.put(0, message("x" * 50))
    await backlog.take()
    assert backlog.put(0, message("x" * 50))
