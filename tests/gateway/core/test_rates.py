"""Token buckets kept as one float."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp_gateway.core.rates import Bucket, Rate

UNIX_TIME = 1_763_000_000.123


def burst_of(bucket: Bucket, now: float, most: int = 20_000) -> int:
    return next((i for i in range(most) if bucket.take(now)), most)


@pytest.mark.rule("G-26")
@given(
    rate=st.floats(0.01, 10_000),
    burst=st.integers(1, 2000),
    now=st.floats(0, 4e9),
)
def test_a_full_bucket_holds_exactly_its_burst(rate: float, burst: int, now: float) -> None:
    assert burst_of(Bucket(Rate.per_second(rate, burst)), now) == burst


@pytest.mark.rule("G-26")
@given(rate=st.floats(0.01, 10_000), burst=st.integers(1, 100), now=st.floats(1e9, 2e9))
def test_after_the_wait_there_is_exactly_one_token(rate: float, burst: int, now: float) -> None:
    bucket = Bucket(Rate.per_second(rate, burst))
    burst_of(bucket, now)
    wait = bucket.take(now)
    assert 0 < wait <= 1.001 / rate + 1e-6
    assert bucket.take(now + wait / 2) > 0
    assert bucket.take(now + wait + 1e-6) == 0
    assert bucket.take(now + wait + 1e-6) > 0


@pytest.mark.rule("G-26")
def test_a_bucket_fills_at_its_rate() -> None:
    bucket = Bucket(Rate.per_second(200, 400))
    accepted, now = 0, UNIX_TIME
    for _ in range(10_000):
        accepted += bucket.take(now) == 0
        now += 0.001
    assert accepted == pytest.approx(400 + 10 * 200, abs=2)


@pytest.mark.rule("G-21")
def test_asking_an_empty_bucket_costs_nothing() -> None:
    bucket = Bucket(Rate.per_second(1, 1))
    bucket.take(UNIX_TIME)
    waits = {bucket.take(UNIX_TIME) for _ in range(1000)}
    assert len(waits) == 1


@pytest.mark.rule("G-26")
def test_a_rate_of_zero_is_no_limit() -> None:
    assert burst_of(Bucket(Rate.per_second(0, 1)), UNIX_TIME) == 20_000
