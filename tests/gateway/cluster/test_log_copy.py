"""The copy of a stream in local files, made of the logs that simulated faults leave."""

from pathlib import Path
from random import Random

import pytest

from mcpp_gateway.cluster.log_copy import CopyFolder, LogCopy
from mcpp_gateway.core.cluster.leading.leadership import Fence
from mcpp_gateway.core.cluster.records import Claim, ClusterBatch, decode_record
from tests.gateway.cluster.simulation import World
from tests.gateway.cluster.test_simulation import PAUSES, act

SEEDS = range(6)


def log_with_faults(seed: int) -> list[bytes]:
    """Return the records of a stream in which some do not count."""
    random = Random(seed)
    world = World(random)
    world.run(1.0)
    while len(world.log) < 60:
        for _ in range(20):
            act(world, random)
            world.run(random.choice(PAUSES))
        world.heal()  # or nothing more may be stored
        world.run(1.0)
    return world.log


def counted(log: list[bytes]) -> list[str]:
    """Return the ids of all entries, by the records that count from the very first on."""
    fence, found = Fence(), list[str]()
    for data in log:
        record = decode_record(data)
        if isinstance(record, Claim):
            fence.admits_claim(record)
        elif isinstance(record, ClusterBatch) and fence.admits(record.batch):
            found += [entry.id for entry in record.batch.entries]
    return found


def read(copy: LogCopy) -> list[str]:
    found: list[str] = []
    start, end = copy.readable()
    while start + len(found) < end:
        found += [entry.id for entry in copy.read(start + len(found), end)]
    return found


@pytest.mark.rule("N-10", "N-11")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_holds_what_counts(tmp_path: Path, seed: int) -> None:
    log = log_with_faults(seed)
    for first in (1, len(log) // 3, len(log) // 2):
        copy = LogCopy(tmp_path / str(first))
        copy.reset("epoch", first)
        for sequence, data in enumerate(log[first - 1 :], first):
            copy.take(sequence, data)
        found, truth = read(copy), counted(log)
        # Of a stream without its beginning, a copy begins some records later.
        expected = len(truth) if first == 1 else len(counted(log)) - len(counted(log[: first + 30]))
        assert found == truth[-len(found) :]
        assert len(found) >= expected
        copy.close()


@pytest.mark.rule("N-10")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_copy_goes_on_after_its_process_was_killed(tmp_path: Path, seed: int) -> None:
    log = log_with_faults(seed)
    first = LogCopy(tmp_path)
    first.open("")
    for sequence, data in enumerate(log[: len(log) // 2], 1):
        first.take(sequence, data)
        if sequence % 7 == 0:
            first.write()
    # Not closed: as after a kill, with what was taken last neither written nor noted.
    epoch = next(found.epoch for found in map(decode_record, log) if isinstance(found, Claim))
    second = LogCopy(tmp_path)
    second.open(epoch)
    assert 0 < second.sequence <= len(log) // 2
    for sequence, data in enumerate(log[second.sequence :], second.sequence + 1):
        second.take(sequence, data)
    assert read(second) == counted(log)
    second.close()
    first.index.stop()


@pytest.mark.rule("N-10")
def test_a_copy_of_another_epoch_or_with_damage_is_begun_again(tmp_path: Path) -> None:
    log = log_with_faults(1)
    epoch = next(found.epoch for found in map(decode_record, log) if isinstance(found, Claim))
    for damage in (False, True):
        copy = LogCopy(tmp_path)
        copy.open(epoch)
        for sequence, data in enumerate(log, 1):
            copy.take(sequence, data)
        assert read(copy) == counted(log)
        copy.close()
        if damage:
            segment = next(tmp_path.glob("*.seg"))
            segment.write_bytes(b"x" * 100)
        again = LogCopy(tmp_path)
        again.open(epoch if damage else "another")
        assert again.sequence == 0
        assert again.end == 0
        again.close()


@pytest.mark.rule("N-10")
def test_gateways_on_one_machine_use_different_folders(tmp_path: Path) -> None:
    first, second = CopyFolder(tmp_path), CopyFolder(tmp_path)
    assert first.path != second.path
    first.close()
    third = CopyFolder(tmp_path)
    assert third.path == first.path
    second.close()
    third.close()
