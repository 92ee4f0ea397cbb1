"""Room for private answers, shared by those who ask for them."""

import pytest

from mcpp.agent.shares import AnswerRoom

pytestmark = pytest.mark.rule("P-47")

LIMITS = {"max_blob_bytes_per_participant": 800, "max_blob_bytes_per_pod": 900}


def test_a_requester_takes_half_of_the_room_and_the_next_half_of_the_rest() -> None:
    room = AnswerRoom()
    taken = {name: sum(room.take(name, 100, LIMITS) for _ in range(8)) for name in "abcd"}
    assert taken == {"a": 4, "b": 2, "c": 1, "d": 1}


def test_room_is_free_again_when_the_gateway_has_deleted_the_answers() -> None:
    now = [0.0]
    room = AnswerRoom(lambda: now[0])
    assert room.take("a", 400, LIMITS)
    now[0] = 100.0
    assert room.take("b", 400, LIMITS)
    assert not room.take("c", 1, LIMITS)
    now[0] = 650.0
    assert not room.take("c", 401, LIMITS)
    assert room.take("c", 400, LIMITS)
    assert not room.take("a", 1, LIMITS)


@pytest.mark.parametrize("limits", [{}, {"max_blob_bytes_per_participant": "much"}])
def test_a_gateway_that_states_no_limit_has_room(limits: dict[str, object]) -> None:
    room = AnswerRoom()
    assert all(room.take("a", 1 << 40, limits) for _ in range(3))
