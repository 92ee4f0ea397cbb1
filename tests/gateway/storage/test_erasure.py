"""Erasing leaves the old log or the new one, wherever it is interrupted."""

import errno
import getpass
import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from mcpp.protocol.codec import decode
from mcpp_gateway.core.history.erasing import Erasure, tombstone
from mcpp_gateway.core.records import LogEntry, decode_batch
from mcpp_gateway.log_tools.commands import main
from mcpp_gateway.log_tools.export import export, import_lines
from mcpp_gateway.log_tools.verify import Verification
from mcpp_gateway.storage.disk import Disk, OsDisk
from mcpp_gateway.storage.erasure import DECISION, NEW, erase
from mcpp_gateway.storage.log_store import take_lock
from mcpp_gateway.storage.segment_log import SegmentLog
from tests.gateway.harness import text
from tests.gateway.storage.sample_log import OPTIONS, PodWithLog, write_sample
from tests.gateway.storage.simulated_disk import SimulatedDisk

SECRET = "the secret plan"
ALICE = Erasure(participant="alice")


class Killed(BaseException):
    """The process was killed."""


class DyingDisk(SimulatedDisk):
    """A disk whose process is killed at a call, and loses power then."""

    die_at = 1 << 60

    def failure(self) -> OSError | None:
        if self.calls >= self.die_at:
            raise Killed
        return super().failure()


def write_log(folder: Path) -> None:
    """Write a log of three segments, with alice's secret in two of them."""
    pod = PodWithLog(folder)
    pod.join("alice")
    pod.join("bob")
    pod.tick()
    pod.say("alice", "a0", SECRET)
    pod.say("bob", "b0", "harmless")
    pod.tick(1.0)
    pod.roll()
    pod.say("bob", "b1", "harmless", context={"id": "task", "type": "task"})
    pod.tick(1.0)
    pod.roll()
    pod.say("alice", "a1", SECRET, correlation_id="b1", context={"id": "step", "parent": "task"})
    pod.say("alice", "a2", SECRET, to=["bob"])
    pod.tick(1.0)
    pod.stop()


def simulated(folder: Path, disk: SimulatedDisk) -> SimulatedDisk:
    for path in sorted(folder.glob("*.seg")):
        disk.add(path.name, path.read_bytes())
    return disk


def run(disk: Disk, erasure: Erasure = ALICE, now: float = 1_900_000_000.0) -> int:
    ids = count()
    return erase(
        disk, erasure, new_id=lambda: f"erased-{next(ids)}", now=now, before_decision=lambda: None
    )


def entries(disk: Disk) -> list[LogEntry]:
    """Open a log as a gateway does and return everything in it."""
    log = SegmentLog(disk, OPTIONS)
    assert log.recover().unreadable == []
    return [entry for record in log.read(0) for entry in decode_batch(record.payload).entries]


def texts(disk: Disk) -> list[bytes]:
    return [entry.text for entry in entries(disk)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "pod"
    write_log(path)
    return path


@pytest.mark.rule("L-20", "L-21", "H-10")
def test_tombstones_keep_order_ids_senders_and_contexts(folder: Path) -> None:
    before = entries(OsDisk(folder))
    assert run(OsDisk(folder)) == 3
    after = entries(OsDisk(folder))
    assert all(SECRET.encode() not in path.read_bytes() for path in folder.iterdir())
    *kept, announcement = after
    assert [(each.id, each.sender) for each in kept] == [(each.id, each.sender) for each in before]
    erased = [each for each in kept if each.erased]
    assert [each.id for each in erased] == ["a0", "a1", "a2"]
    for each in erased:
        envelope = decode(each.text)
        assert (envelope.id, envelope.sender, envelope.kind) == (each.id, "alice", "tombstone")
        assert envelope.payload is None
        assert each.kind == "tombstone"
    reply = decode(erased[1].text)
    assert reply.correlation_id == "b1"
    assert reply.context is not None
    assert (reply.context.id, reply.context.parent) == ("step", "task")
    told = decode(announcement.text)
    assert (told.kind, told.sender) == ("system/erased", "system:gateway")
    assert told.payload == {"participant": "alice", "entries": 3}


@pytest.mark.rule("H-10")
@pytest.mark.parametrize(
    ("payload", "outcome"),
    [
        ({"decision": SECRET}, "concluded"),
        ({"outcome": "failed", "error": {"message": SECRET}}, "failed"),
        ({"outcome": SECRET}, "concluded"),
    ],
)
def test_the_tombstone_of_a_conclusion_keeps_how_the_context_ended(
    payload: dict[str, object], outcome: str
) -> None:
    context = {"id": "task", "type": "task", "metadata": {"title": SECRET}}
    data = text("c", "alice", "conclusion", payload, context=context)
    erased = tombstone(LogEntry("c", "alice", None, "conclusion", None, data), 1.0)
    assert SECRET.encode() not in erased.text
    assert decode(erased.text).payload == {"outcome": outcome}


@pytest.mark.rule("H-10", "L-20")
def test_a_participant_is_erased_with_its_card(tmp_path: Path) -> None:
    pod = PodWithLog(tmp_path / "pod")
    pod.join("alice")
    pod.say("alice", "card", {"card": {"description": SECRET}}, kind="pod/card")
    pod.tick(1.0)
    pod.roll()
    pod.say("alice", "a0", "harmless")
    pod.tick(1.0)
    pod.roll()  # a segment of nothing but a state
    pod.stop()
    files = list((tmp_path / "pod").iterdir())
    assert sum(SECRET.encode() in path.read_bytes() for path in files) == 3
    assert run(OsDisk(tmp_path / "pod"), Erasure(participant="alice", before=1.0)) == 0
    assert run(OsDisk(tmp_path / "pod")) == 2
    assert all(SECRET.encode() not in path.read_bytes() for path in files)
    assert run(OsDisk(tmp_path / "pod")) == 0
    assert Verification(tmp_path / "pod").run() == []


@pytest.mark.rule("L-21")
def test_an_erased_log_is_verified_and_exported_and_imported(folder: Path, tmp_path: Path) -> None:
    run(OsDisk(folder))
    assert Verification(folder).run() == []
    lines = list(export(folder))
    copy = tmp_path / "copy"
    import_lines(iter(lines), copy)
    assert [each for each in entries(OsDisk(copy)) if each.erased] != []
    assert list(export(copy))[1:] == lines[1:]
    assert run(OsDisk(copy)) == 0, "everything is erased already"


@pytest.mark.rule("L-20")
def test_a_context_is_erased_with_its_descendants_and_before_a_time(folder: Path) -> None:
    start = texts(OsDisk(folder))
    assert run(OsDisk(folder), Erasure(context="task", before=1.0)) == 0
    assert texts(OsDisk(folder)) == start, "nothing is announced that was not done"
    assert run(OsDisk(folder), Erasure(context="task")) == 2
    erased = [each.id for each in entries(OsDisk(folder)) if each.erased]
    assert erased == ["b1", "a1"]


@pytest.mark.rule("L-20")
def test_an_interrupted_log_stays_interrupted(tmp_path: Path) -> None:
    """A stop's seal would hide that its end may be lost (G-16)."""
    write_sample(tmp_path, stop=False)
    SegmentLog(OsDisk(tmp_path), OPTIONS).recover()
    assert run(OsDisk(tmp_path)) > 0
    recovery = SegmentLog(OsDisk(tmp_path), OPTIONS).recover()
    assert not recovery.stopped
    assert recovery.state is not None


def interruptions(folder: Path) -> Iterator[int]:
    """Yield the number of every call to the disk that an erasure makes."""
    disk = simulated(folder, SimulatedDisk())
    run(disk)
    yield from range(disk.calls + 1)


@pytest.mark.rule("L-22")
def test_killed_at_any_step_the_log_is_the_old_or_the_new_one(folder: Path) -> None:
    old = texts(simulated(folder, SimulatedDisk()))
    whole = simulated(folder, SimulatedDisk())
    run(whole)
    new = texts(whole)
    seen = set()
    for call in interruptions(folder):
        for seed in range(84):
            disk = DyingDisk(choose=random.Random(seed).randrange)
            simulated(folder, disk)
            disk.die_at = call
            with suppress(Killed):
                run(disk)
            if seed % 2:  # otherwise only the process ends
                disk.crash()
            # Opening the log is interrupted, too.
            disk.die_at = disk.calls + seed // 2 % 7
            try:
                texts(disk)
            except Killed:
                disk.crash()
            disk.die_at = 1 << 60
            found = texts(disk)
            assert found in (old, new), f"a mixture after call {call}, seed {seed}"
            seen.add(found == new)
            assert not [name for name in disk.names() if name.endswith(NEW) or name == DECISION]
    assert seen == {True, False}


@pytest.mark.rule("L-22")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_disk_that_fails_at_any_step_leaves_the_old_or_the_new_log(
    folder: Path, code: int
) -> None:
    old = texts(simulated(folder, SimulatedDisk()))
    whole = simulated(folder, SimulatedDisk())
    run(whole)
    new = texts(whole)
    for call in interruptions(folder):
        disk = simulated(folder, SimulatedDisk(choose=random.Random(call).randrange))
        disk.fail = {call: code}
        try:
            run(disk)
        except OSError as error:
            assert error.errno == code
        disk.crash()
        assert texts(disk) in (old, new)


def command(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main(["erase", *argv])
    said = capsys.readouterr()
    return code, said.out + said.err


@pytest.mark.rule("L-20", "L-23")
def test_the_command_erases_log_and_index(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "text.sqlite").write_text(SECRET)
    (folder / "text.sqlite-wal").write_text(SECRET)
    where = [str(folder), "--participant", "alice"]
    assert command(capsys, str(folder)) == (
        1,
        "mcpp log: say what to erase, with --context or --participant\n",
    )
    assert command(capsys, *where, "--dry-run") == (0, "3 entries would be erased\n")
    assert (folder / "text.sqlite").exists()
    assert command(capsys, *where, "--before", "2000-01-01") == (0, "0 entries erased\n")
    assert command(capsys, *where) == (0, "3 entries erased\n")
    assert all(SECRET.encode() not in path.read_bytes() for path in folder.iterdir())
    assert command(capsys, *where) == (0, "0 entries erased\n")


@pytest.mark.rule("L-24", "H-10")
def test_who_erased_what_and_when_survives_export_and_import(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = [str(folder), "--participant", "alice"]
    with pytest.raises(SystemExit):
        command(capsys, *where, "--by", "a\x1b name")
    assert command(capsys, *where, "--by", "the DPO")[0] == 0
    assert main(["export", str(folder), "--output", str(tmp_path / "all.jsonl")]) == 0
    copy = tmp_path / "copies" / "demo"
    assert main(["import", str(copy), "--input", str(tmp_path / "all.jsonl"), "--new-epoch"]) == 0
    assert command(capsys, str(copy), "--context", "task", "--before", "now")[0] == 0
    assert main(["erasures", "--json", str(copy)]) == 0
    *_, first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert {"by": "the DPO", "participant": "alice", "entries": 3}.items() <= first.items()
    assert {"by": getpass.getuser(), "context": "task"}.items() <= second.items()
    assert 0 < second["before"] <= second["time"] <= time.time()
    assert first["position"] < second["position"]
    assert main(["erasures", str(copy)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("UTC ")[1].split(" before")[0] for line in lines] == [
        "the DPO: 3 entries of alice",
        f"{getpass.getuser()}: {second['entries']} entry in context task",
    ]


@pytest.mark.rule("L-23")
def test_a_log_in_use_or_damaged_is_not_erased(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    lock = take_lock(folder.parent)
    where = [str(folder), "--participant", "alice"]
    code, said = command(capsys, *where)
    os.close(lock)
    assert (code, said) == (
        1,
        "mcpp log: a gateway is running on this log; stop it first\n",
    )
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    oldest = min(folder.glob("*.seg"))
    content = bytearray(oldest.read_bytes())
    content[-20] ^= 1
    oldest.write_bytes(content)
    code, said = command(capsys, *where)
    assert code == 1
    assert "nothing was erased" in said


@pytest.mark.rule("L-22")
def test_tools_do_not_read_a_log_between_two_versions(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / DECISION).write_bytes(b"MCPP erasure decided\n")
    assert main(["verify", str(folder)]) == 1
    assert "an erasure was interrupted" in capsys.readouterr().err
    assert command(capsys, str(folder), "--participant", "nobody") == (0, "0 entries erased\n")
    assert main(["verify", str(folder)]) == 0
