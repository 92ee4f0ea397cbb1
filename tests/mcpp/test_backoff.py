"""How long a participant waits before it comes back."""

from itertools import pairwise

import pytest

from mcpp.connection import backoff


@pytest.mark.rule("P-12")
def test_the_wait_grows_to_a_bound_and_is_never_the_same_for_two() -> None:
    waits = [[backoff(attempt) for _ in range(200)] for attempt in range(12)]
    for shorter, longer in pairwise(waits[:7]):
        assert max(shorter) <= min(longer) * 1.001
    assert all(0.05 <= wait <= 10 for row in waits for wait in row)
    assert all(len(set(row)) > 190 for row in waits)


def test_an_absence_of_days_is_no_overflow() -> None:
    assert 5 <= backoff(1_000_000) <= 10
