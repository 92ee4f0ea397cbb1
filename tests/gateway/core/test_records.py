"""States and batches as bytes."""

import msgspec
import pytest

from mcpp_gateway.core.journal import MemoryJournal, Window, WindowRows
from mcpp_gateway.core.records import (
    DormantState,
    LiveState,
    LogEntry,
    State,
    WindowEntry,
    decode_state,
    encode_state,
)


def large_state(count: int) -> State:
    return State(
        "epoch",
        3,
        7,
        count,
        1.5,
        tuple(f"p{number}" for number in range(count)),
        tuple(WindowEntry(f"m{number}", "a", number) for number in range(count)),
        tuple(
            LiveState(f"c{n}", None, None, "a", n, ("a", "b"), 1.0, 2.0, None, 1.0, (("b", 2.0),))
            for n in range(count)
        ),
        tuple(DormantState(f"d{n}", "t", None, "a", n, 1.0) for n in range(count)),
        "boot",
        "interval",
    )


@pytest.mark.rule("L-16")
@pytest.mark.parametrize("count", [0, 1, 15, 16, 499, 500, 501, 65_535, 65_536])
def test_a_state_that_is_encoded_in_pieces_is_the_same_as_in_one(count: int) -> None:
    state = large_state(count)
    assert encode_state(state) == msgspec.msgpack.encode(state)
    found = decode_state(encode_state(state))
    assert msgspec.structs.replace(found, window=tuple(found.window)) == state


@pytest.mark.rule("L-16", "L-04")
def test_a_window_is_kept_as_it_was_when_the_state_was_taken() -> None:
    log = MemoryJournal(3, 1000)
    window = Window(3, 1000)
    for number in range(5):
        entry = LogEntry(f"m{number}", "a", None, "chat", None, b"")
        log.append(entry)
        window.append(entry)
    window.trim(5)
    for rows in (log.window(), window.snapshot()):
        log.append(LogEntry(f"new{rows[0].position}{id(rows)}", "a", None, "chat", None, b""))
        assert isinstance(rows, WindowRows)
        assert rows[1:] == [WindowEntry("m3", "a", 3), WindowEntry("m4", "a", 4)]
        assert rows[-1] == WindowEntry("m4", "a", 4)
