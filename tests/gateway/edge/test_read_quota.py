"""The read quota: turns within ticks, frames and CPU time within seconds."""

from collections.abc import Callable
from typing import Any

import pytest

from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.rates import Bucket, Rate
from mcpp_gateway.core.sessions import Member, ParticipantSettings
from mcpp_gateway.edge.read_quota import ReadQuota


class ScheduledCalls:
    """A scheduler whose calls the test runs by hand."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.calls.append(lambda: callback(*args))

    def call_later(self, delay: float, callback: Any, *args: Any) -> None:
        raise AssertionError("the quota sets no timers")

    def run(self) -> None:
        calls, self.calls = self.calls, []
        for call in calls:
            call()


class PausedConnection:
    """A connection that reads `size` bytes when it is resumed."""

    def __init__(self, quota: ReadQuota, size: int = 0) -> None:
        self._quota = quota
        self._size = size
        self.paused = False

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False
        self._quota.tick_read_bytes += self._size


def new_member() -> Member:
    return Member(ParticipantSettings("a", Capabilities([])), Bucket(Rate.per_second(1, 1)))


@pytest.mark.rule("G-38")
def test_connections_resume_in_order_until_the_tick_is_full() -> None:
    scheduler = ScheduledCalls()
    quota = ReadQuota(scheduler, lambda: 0.0, tick_bytes=100)
    waiting = [PausedConnection(quota, size=60) for _ in range(5)]
    for each in waiting:
        quota.pause_for_turn(each)
    quota.forget(waiting[4])
    paused = []
    while scheduler.calls:
        scheduler.run()
        paused.append([each.paused for each in waiting[:4]])
    assert paused == [[False, False, True, True], [False] * 4]
    assert waiting[4].paused


@pytest.mark.rule("C-16")
def test_frames_without_a_token_are_limited_a_second_over_all_connections() -> None:
    quota, member = ReadQuota(ScheduledCalls(), lambda: 10.0, tick_bytes=100), new_member()
    account = quota.account(member)
    assert quota.account(member) is account
    member.rate_limited += 300
    for _ in range(200):
        account.charge_frame()
    assert member.rate_limited <= account.limit
    member.rate_limited += 1
    assert member.rate_limited > account.limit
    connection = PausedConnection(quota)
    quota.pause_for_second(connection)
    quota.start_second()
    assert not connection.paused
    assert account.second != quota.second
    account.renew(member, quota.second)
    assert member.rate_limited + 500 == account.limit


@pytest.mark.rule("G-47")
def test_cpu_time_above_the_free_share_is_charged_and_more_so_when_all_use_much() -> None:
    quota = ReadQuota(ScheduledCalls(), lambda: 10.0, tick_bytes=100)
    first, second = quota.account(new_member()), quota.account(member := new_member())
    quota.cpu_clock = lambda: 1.0
    quota.charge(first, 0.0, 1.0 - 99e-6, 1, 400)
    assert first.limit == 500
    quota.charge(first, 0.0, 1.0 - 0.24 - 100e-6, 1, 0)
    assert first.limit == pytest.approx(500 - 480)
    quota.charge(second, 0.0, 1.0 - 0.02 - 100e-6, 1, 0)
    assert second.limit == pytest.approx(500 - 400)
    quota.start_second()
    second.renew(member, quota.second)
    quota.charge(second, 0.0, 1.0 - 0.02 - 100e-6, 1, 0)
    assert second.limit == pytest.approx(500 - 40)


@pytest.mark.rule("G-47")
def test_the_cpu_clock_is_not_read_if_too_little_time_has_elapsed() -> None:
    quota = ReadQuota(ScheduledCalls(), lambda: 10.0, tick_bytes=100)
    account = quota.account(new_member())
    quota.cpu_clock = lambda: pytest.fail("read")
    quota.charge(account, 10.0 - 99e-6, 0.0, 1, 400)
    assert account.limit == 500
    assert quota.read_bytes == quota.tick_read_bytes == 400
