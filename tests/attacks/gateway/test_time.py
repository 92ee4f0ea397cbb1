"""Attacks on the gateway's time: what an honest client notices of them.

The short forms measure the gateway's own processor time (`simulation`); those of `make torture` run
processes and measure what a client sees, where the machine must have a core to spare.
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

import pytest

from tests.attacks.gateway.attackers import costly_filter
from tests.attacks.gateway.process import (
    attack,
    configuration,
    envelope,
    gateway,
    measure,
    percentile,
)
from tests.attacks.gateway.simulation import simulation
from tests.gateway.harness import text as envelope_text
from tests.gateway.sockets import raw_frame

P = ParamSpec("P")

# The figure of the issue; before, 20 costly filters made it 3.9 s.
GOAL_SECONDS = 0.025
READS_PAYLOADS = {"p0": 'capabilities = [{ kind = "x", payload = { b = 1 } }]'}


def show(found: list[float]) -> None:
    """Write the figures to the test's output, which pytest shows with `-s` or on a failure."""
    p50, p95, p99 = (percentile(found, share) * 1000 for share in (0.5, 0.95, 0.99))
    worst = max(found) * 1000
    sys.stdout.write(f"p50 {p50:.2f} p95 {p95:.2f} p99 {p99:.2f} max {worst:.1f} ms\n")


def tries(test: Callable[P, None]) -> Callable[P, None]:
    """Let a test try three times: other work of the machine costs a single run processor time.

    An attack that works does so every time.
    """

    @wraps(test)
    def tried(*args: P.args, **kwargs: P.kwargs) -> None:
        for _ in range(2):
            try:
                return test(*args, **kwargs)
            except AssertionError as error:
                sys.stdout.write(f"once more: {error}\n")
        return test(*args, **kwargs)

    return tried


@pytest.mark.rule("F-23", "G-65")
@tries
def test_costly_filters_and_new_kinds() -> None:
    """Twenty filters of 64 parts, and new kinds from each of twenty senders."""
    with simulation(20, messages_per_second=1000, burst=2000) as simulated:
        filters = [f"filter={costly_filter(index)}" for index in range(20)]
        attackers = [simulated.join(f"p{index}", query) for index, query in enumerate(filters)]

        def chunk(index: int, number: int) -> bytes:
            ids = [f"{index}-{number}-{i}" for i in range(20)]
            return b"".join(envelope(f"p{index}", f"m-{i}", f"x{'y' * 20}-{i}z") for i in ids)

        found = simulated.latencies(attackers, chunk, seconds=2)
    show(found)
    assert percentile(found, 0.99) < GOAL_SECONDS * simulated.slowness


@pytest.mark.rule("F-23", "G-65")
@tries
def test_costly_filters_of_some_and_new_kinds_of_many_others() -> None:
    """Who pays for the filters sends nothing; p99 was 437 ms."""
    with simulation(160) as simulated:
        for index in range(80, 160):
            simulated.join(f"p{index}", f"filter={costly_filter(index)}")
        attackers = [simulated.join(f"p{index}") for index in range(80)]
        simulated.clock.waited += 1
        simulated.loop.turn()  # their joins are announced

        def chunk(index: int, number: int) -> bytes:
            name = f"{index}-{number}"
            return envelope(f"p{index}", f"m-{name}", f"x{'y' * 20}-{name}z")

        found = simulated.latencies(attackers, chunk, seconds=3)
    show(found)
    # All of them are newcomers once: in the first rounds there is no one to wait.
    assert percentile(found, 0.98) < GOAL_SECONDS * simulated.slowness


@pytest.mark.rule("G-65")
@tries
def test_large_payloads_that_a_rule_reads() -> None:
    """One sender of 900 kB: before, p99 was 498 ms."""
    payload = {"a": [{"k": i, "v": "x"} for i in range(45_000)]}
    pattern = envelope_text("m-000000", "p0", "x", payload)
    with simulation(1, READS_PAYLOADS) as simulated:
        attacker = simulated.join("p0")

        def chunk(index: int, number: int) -> bytes:
            return raw_frame(0x81, pattern.replace(b"m-000000", b"m-%06d" % number))

        found = simulated.latencies([attacker], chunk, seconds=3)
    # One such text takes longer than the goal, so it is met by reading few of them.
    show(found)
    assert percentile(found, 0.99) < GOAL_SECONDS * simulated.slowness


@pytest.mark.rule("G-65")
@pytest.mark.parametrize("form", ["whole", "fragments"])
@tries
def test_first_large_texts_of_many_participants_at_once(form: str) -> None:
    """30 of 800 kB: before, the honest client waited for 1.7 s, because none of them owed yet."""
    rules = {f"p{index}": READS_PAYLOADS["p0"] for index in range(30)}
    pattern = envelope_text("m-000000", "pNN", "x", [{}] * 260_000)

    def text(index: int, number: int) -> bytes:
        id = b"m-%06d" % number
        return pattern.replace(b"pNN", b"p%d" % index).replace(b"m-000000", id)

    def chunk(index: int, number: int) -> bytes:
        if form == "whole":
            return raw_frame(0x81, text(index, number))
        # All but the last bytes have been read, and the next round's text begins.
        return raw_frame(0x80, text(index, 0)[-10:]) + raw_frame(0x01, text(index, number)[:-10])

    with simulation(30, rules) as simulated:
        attackers = [simulated.join(f"p{index}") for index in range(30)]
        if form == "fragments":
            for index, each in enumerate(attackers):
                each.send(raw_frame(0x01, text(index, 0)[:-10]))
        found = simulated.latencies(attackers, chunk, seconds=3)
    show(found)
    assert percentile(found, 0.99) < GOAL_SECONDS * simulated.slowness
    assert (
        max(found) < 0.5 * simulated.slowness
    )  # one such text, and what arrived with it; not thirty


@pytest.mark.rule("G-65", "G-38")
@pytest.mark.parametrize("payload", [[{}] * 9000, "x" * 27_000], ids=["values", "string"])
@pytest.mark.parametrize("receivers", ["none", "all"])
@tries
def test_texts_of_many_participants_that_fill_ticks(payload: object, receivers: str) -> None:
    """200 of 27 kB: before, all were read first, which took 54 ms, and 170 if all receive all."""
    pattern = envelope_text("m-000000", "pNN", "x", payload)
    query = "" if receivers == "all" else "filter=%7B%22kind%22:%22none%22%7D"
    with simulation(200) as simulated:
        attackers = [simulated.join(f"p{index}", query) for index in range(200)]
        simulated.clock.waited += 1
        simulated.loop.turn()  # their joins are announced

        def chunk(index: int, number: int) -> bytes:
            id = b"m-%06d" % (number * 200 + index)
            text = pattern.replace(b"pNN", b"p%d" % index).replace(b"m-000000", id)
            return raw_frame(0x81, text)

        found = simulated.latencies(attackers, chunk, seconds=1)
    show(found)
    # Two ticks, and what they write: 256 KiB to each receiver.
    goal = GOAL_SECONDS if receivers == "none" else 2 * GOAL_SECONDS
    assert percentile(found, 0.95) < goal * simulated.slowness


@pytest.mark.rule("G-65", "H-09")
@pytest.mark.parametrize("query", [{"text": '"alpha beta" delt*'}, {"limit": 100}], ids=str)
@tries
def test_requests_for_history_of_many_participants_at_once(query: dict[str, Any]) -> None:
    """200 searches of a log in memory, none of whose senders owes anything: 4.6 s before."""
    words = "alpha gamma délta beta " * 15
    with simulation(200, messages_per_second=0) as simulated:
        writer = simulated.join("bob")
        for number in range(3000):
            writer.send(envelope("bob", f"m-{number}", "chat", words))
            simulated.settle(writer)
        attackers = [simulated.join(f"p{index}") for index in range(200)]
        simulated.clock.waited += 1
        simulated.loop.turn()  # their joins are announced

        def chunk(index: int, number: int) -> bytes:
            return envelope(f"p{index}", f"q-{index}-{number}", "pod/history", query)

        found = simulated.latencies(attackers, chunk, seconds=2)
    show(found)
    # An echo may wait for two full ticks with a turn of pages each, and for their pages being
    # written: 12 to 45 ms, depending on what else the machine does.
    assert percentile(found, 0.99) < 4 * GOAL_SECONDS * simulated.slowness


@pytest.mark.rule("G-65", "F-22")
@pytest.mark.parametrize("parts", [7, 60])
@tries
def test_filters_that_change_all_the_time(parts: int) -> None:
    """Each change compiles a filter and forgets the routes, which new kinds then find again."""

    def filter(name: str) -> dict[str, Any]:
        return {"any": [{"kind": f"x{'y' * (i % 20)}*{name}-{i}z"} for i in range(parts)]}

    with simulation(20, messages_per_second=0) as simulated:
        attackers = [simulated.join(f"p{index}") for index in range(20)]

        def chunk(index: int, number: int) -> bytes:
            me, found = f"p{index}", b""
            for i in range(4):
                name = f"{index}-{number}-{i}"
                found += envelope(me, f"f-{name}", "pod/filter", {"filter": filter(name)})
                found += envelope(me, f"m-{name}", f"x{'y' * 20}-{name}-1z")
            return found

        found = simulated.latencies(attackers, chunk, seconds=2)
    show(found)
    assert percentile(found, 0.99) < GOAL_SECONDS * simulated.slowness


@pytest.mark.rule("G-65", "C-16")
@tries
def test_garbage_and_pings_beyond_every_rate() -> None:
    garbage = raw_frame(0x81, b'{"id":"x","a":[' + b"1," * 1000 + b"1]}") + raw_frame(0x89, b"ping")
    with simulation(20) as simulated:
        attackers = [simulated.join(f"p{index}") for index in range(20)]
        found = simulated.latencies(attackers, lambda index, number: garbage * 20, seconds=2)
    show(found)
    assert percentile(found, 0.99) < GOAL_SECONDS * simulated.slowness


@pytest.mark.rule("G-65", "G-57")
@tries
def test_resumptions_with_costly_filters() -> None:
    with simulation(20, messages_per_second=0) as simulated:
        writer = simulated.join("p0")
        for number in range(5000):
            kind = f"x{'y' * 20}-0-{number}z"
            writer.send(envelope("p0", f"m-{number}", kind))
            simulated.settle(writer)
        found = []
        for index in range(1, 20):
            began = simulated.clock()
            simulated.join(f"p{index}", f"last=10000&filter={costly_filter(index)}")
            found.append(simulated.echo(began))
        found += simulated.latencies([], lambda index, number: b"", seconds=1)
    show(found)
    assert (
        percentile(found, 0.95) < GOAL_SECONDS * simulated.slowness
    )  # the joins themselves are among them


@pytest.mark.torture
@pytest.mark.rule("F-23", "G-65")
@pytest.mark.parametrize("program", ["costly_filters", "garbage", "rejoin", "resume_with_filter"])
def test_an_honest_client_of_an_attacked_process(program: str) -> None:
    """By the clock on the wall, beside the attack's own processes: three tries."""
    text = configuration(20)
    if "resume" in program:
        text = configuration(20, messages_per_second=3000, burst=10_000)
    best = 1.0
    for _ in range(3):
        with gateway(text) as victim, attack(program, victim):
            quiet = 1.5 * (os.cpu_count() or 1)
            deadline = time.monotonic() + 60
            while os.getloadavg()[0] > quiet + 3 and time.monotonic() < deadline:
                time.sleep(1)
            best = min(best, percentile(asyncio.run(measure(victim, seconds=5)), 0.99))
        if best < GOAL_SECONDS:
            break
    assert best < GOAL_SECONDS
