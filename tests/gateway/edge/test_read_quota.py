"""The read quota: turns within ticks, frames and CPU time within seconds."""

from collections.abc import Callable
from typing import Any

import pytest

from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.rates import Bucket, Rate
from mcpp_gateway.core.sessions import Member, ParticipantSettings
from mcpp_gateway.edge.cpu_budget import CpuAccount, CpuBudget, may_be_long
from mcpp_gateway.edge.read_quota import ReadQuota


class ScheduledCalls:
    """A scheduler whose calls the test runs by hand."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.delays: list[float] = []

    def call_soon(self, callback: Any, *args: Any) -> None:
        self.calls.append(lambda: callback(*args))

    def call_later(self, delay: float, callback: Any, *args: Any) -> None:
        self.delays.append(delay)
        self.calls.append(lambda: callback(*args))

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
        quota.pause_for_turn(each, CpuAccount(), 100_000, 10.0)
    quota.forget(waiting[4])
    paused = []
    while scheduler.calls:
        scheduler.run()
        paused.append([each.paused for each in waiting[:4]])
    assert paused == [[False, False, True, True], [False] * 4]
    assert waiting[4].paused


@pytest.mark.rule("G-65")
def test_who_sends_little_and_owes_nothing_has_the_first_turn() -> None:
    scheduler = ScheduledCalls()
    quota = ReadQuota(scheduler, lambda: 10.0, tick_bytes=100)
    large, in_debt, small = (PausedConnection(quota, size=200) for _ in range(3))
    owing = CpuAccount()
    owing.repaid_at = 10.1
    quota.pause_for_turn(large, CpuAccount(), 100_000, 10.0)
    quota.pause_for_turn(in_debt, owing, 100, 10.0)
    quota.pause_for_turn(small, CpuAccount(), 100, 10.0)
    scheduler.run()
    assert [each.paused for each in (large, in_debt, small)] == [True, True, False]


@pytest.mark.rule("G-65", "F-23")
def test_who_causes_work_has_its_turn_behind_others_even_if_filters_owners_pay() -> None:
    now = [10.0]
    quota = ReadQuota(ScheduledCalls(), lambda: now[0], tick_bytes=100)
    budget, sender, other = quota.budget, new_member(), new_member()
    budget.cpu_clock = lambda: now[0]
    owner = Member(ParticipantSettings("o", Capabilities([])), Bucket(Rate.per_second(1, 1)))
    pod = FilteredPod(owner)
    quota.charge(pod, quota.account(sender), 0.002, 10_000, 10.0)  # type: ignore[arg-type]
    assert quota.account(sender).repaid_at == 0.0
    assert quota.account(owner).repaid_at > 10.0
    now[0] += 0.005
    budget.measure(10.0, 10.0, 0.001)
    assert budget.tick_is_used
    assert not budget.tick_is_full
    assert not quota.has_turn(quota.account(sender), 100, now[0])
    assert quota.has_turn(quota.account(other), 100, now[0])
    for _ in range(4):
        quota.start_second()
    quota.renew(quota.account(sender), sender)
    assert quota.has_turn(quota.account(sender), 100, now[0])
    now[0] += 0.01
    budget.measure(10.0, 10.0, 0.001)
    assert budget.tick_is_full
    assert not quota.has_turn(quota.account(other), 100, now[0])


@pytest.mark.rule("G-65")
def test_many_small_excesses_do_not_cost_the_first_turn() -> None:
    """An honest client's texts take a little longer on a busy machine, some dozens a second."""
    now = [10.0]
    quota, member = ReadQuota(ScheduledCalls(), lambda: now[0], tick_bytes=100), new_member()
    account, pod = quota.account(member), FilteredPod(member)
    for _ in range(30):
        quota.charge(pod, account, 0.00008, 0, now[0])  # type: ignore[arg-type]
        now[0] += 0.03
    quota.budget.measure(now[0] - 0.005, 0.0, 1.0)
    assert quota.budget.tick_is_used
    assert quota.has_turn(account, 100, now[0])


class FilteredPod:
    """A pod in which one participant has a filter."""

    def __init__(self, owner: Member) -> None:
        self._owner = owner

    def filter_owners(self) -> dict[Member, int]:
        return {self._owner: 1}


@pytest.mark.rule("G-65")
def test_texts_that_may_take_long_are_read_one_by_one_from_who_has_used_the_least() -> None:
    now, scheduler = [10.0], ScheduledCalls()
    quota = ReadQuota(scheduler, lambda: now[0], tick_bytes=100)
    quota.budget.charge(CpuAccount(), 0.05, 10.0)
    assert quota.budget.long_repaid_at == pytest.approx(10.8)  # a sixteenth
    waiting = [PausedConnection(quota) for _ in range(3)]
    for each, repaid_at in zip(waiting, (9.0, 0.0, 0.0), strict=True):
        account = CpuAccount()
        account.repaid_at = repaid_at
        quota.pause_for_large_text(each, account)
    assert scheduler.delays == [pytest.approx(0.8)]
    now[0] = 10.81
    scheduler.run()
    assert [each.paused for each in waiting] == [True, False, True]
    quota.budget.charge(CpuAccount(), 0.05, now[0])
    scheduler.run()
    assert [each.paused for each in waiting] == [True, False, True]
    quota.forget(waiting[2])
    now[0] = 11.7
    scheduler.run()
    assert [each.paused for each in waiting] == [False, False, True]
    assert not scheduler.calls


@pytest.mark.rule("G-65")
def test_large_texts_of_few_values_are_never_long() -> None:
    assert not may_be_long(b"word " * 200_000)
    assert may_be_long(b"1," * 10_000)
    assert may_be_long(b"[]" * 10_000)


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


@pytest.mark.rule("G-47", "G-65")
def test_who_owes_waits_longer_the_more_all_owe_and_who_owes_nothing_never() -> None:
    budget = CpuBudget(lambda: 10.0)
    first, second, third = CpuAccount(), CpuAccount(), CpuAccount()
    budget.charge(first, 0.0199, 10.0)
    assert budget.wait(first, 10.0) == 0
    budget.charge(first, 0.5, 10.0)
    assert budget.wait(first, 10.0) > 4  # an eighth
    assert budget.wait(first, first.repaid_at) == 0
    budget.charge(second, 0.0199, 10.0)
    assert 1 < budget.wait(second, 10.0) < budget.wait(first, 10.0)
    assert budget.wait(third, 10.0) == 0


@pytest.mark.rule("G-65")
@pytest.mark.parametrize("participants", [2, 20, 200])
def test_all_together_take_about_a_quarter_as_excess(participants: int) -> None:
    """Each takes as much as it may, a millisecond at a time, for a minute."""
    budget, now, spent = CpuBudget(lambda: 0.0), 0.0, 0.0
    accounts = [CpuAccount() for _ in range(participants)]
    while now < 60.0:
        for account in accounts:
            if not budget.wait(account, now):
                budget.charge(account, 0.001, now)
                now += 0.001
                spent += 0.001
        now += 0.001
    assert 0.1 < spent / now < 0.35


@pytest.mark.rule("G-65", "F-23")
def test_what_filters_take_is_charged_to_their_owners() -> None:
    budget = CpuBudget(lambda: 10.0)
    owner, other = CpuAccount(), CpuAccount()
    owners = lambda: [(owner, 0.75), (other, 0.25)]  # noqa: E731
    assert budget.charge_filters(0.5, 10_000, owners, 10.0) == pytest.approx(0.497)
    assert owner.repaid_at > other.repaid_at > 10.0
    assert budget.charge_filters(0.001, 10_000, owners, 10.0) == 0.0


@pytest.mark.rule("G-65")
def test_a_tick_has_little_time_for_those_who_owe_or_send_much() -> None:
    now = [10.0]
    quota = ReadQuota(ScheduledCalls(), lambda: now[0], tick_bytes=100)
    budget, account = quota.budget, quota.account(new_member())
    budget.cpu_clock = lambda: now[0]
    assert quota.has_turn(account, 100_000, 10.0)
    now[0] += 0.01
    budget.charge(account, budget.measure(10.0, 10.0, 0.001), 10.0)
    assert budget.tick_is_used
    other = quota.account(new_member())
    assert not quota.has_turn(account, 100, now[0])
    assert quota.has_turn(other, 100, now[0])
    assert not quota.has_turn(other, 100_000, now[0])
    quota.start_tick()
    assert quota.has_turn(account, 100, now[0])
    assert quota.has_turn(other, 100_000, now[0])


@pytest.mark.rule("G-65")
def test_a_debt_stays_with_a_participant_that_rejoins() -> None:
    quota, bucket = ReadQuota(ScheduledCalls(), lambda: 10.0, tick_bytes=100), new_member().bucket
    settings = ParticipantSettings("a", Capabilities([]))
    quota.budget.charge(quota.account(Member(settings, bucket)), 1.0, 10.0)
    assert quota.budget.wait(quota.account(Member(settings, bucket)), 10.0) > 5
    assert quota.join_wait(bucket) > 5
    assert quota.join_wait(new_member().bucket) == quota.join_wait(None) == 0


@pytest.mark.rule("G-47")
def test_the_cpu_clock_is_not_read_if_too_little_time_has_elapsed() -> None:
    budget = CpuBudget(lambda: 10.0)
    budget.cpu_clock = lambda: pytest.fail("read")
    assert budget.measure(10.0 - 99e-6, 0.0, 100e-6) == 0.0
