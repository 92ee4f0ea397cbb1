"""The command `mcpp log`: what it reports, what it refuses, and that nothing is lost on the way."""

import fcntl
import io
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.records import (
    Batch,
    LogEntry,
    OwnerState,
    State,
    decode_batch,
    decode_state,
    encode_batch,
    encode_state,
)
from mcpp_gateway.log_tools.backup import back_up
from mcpp_gateway.log_tools.commands import main
from mcpp_gateway.log_tools.export import export, import_lines
from mcpp_gateway.log_tools.reader import LogToolError
from mcpp_gateway.log_tools.verify import Verification
from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.log_store import LOCK
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import BATCH, STATE, NewRecord
from tests.gateway.storage.sample_log import OPTIONS, PodWithLog, write_sample

FIRST, SECOND = segments.segment_name(0), segments.segment_name(10)


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    write_sample(tmp_path / "log" / "pod", stop=True)
    return tmp_path / "log" / "pod"


@contextmanager
def in_use(folder: Path) -> Iterator[None]:
    """Hold the lock that a running gateway holds."""
    with (folder.parent / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def problems(folder: Path) -> list[str]:
    return Verification(folder).run()


# --- export and import ----------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.rule("L-11", "G-16")
@pytest.mark.parametrize(("name", "kept"), [(FIRST, (10, 15)), (SECOND, (0, 14))])
def test_what_is_readable_of_a_damaged_log_can_go_on_in_a_new_epoch(
    sample: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    name: str,
    kept: tuple[int, int],
) -> None:
    content = (sample / name).read_bytes()
    flip(sample / name, content.rindex(b'"m6"' if name == SECOND else b'"m3"'))
    out = tmp_path / "lines"
    assert main(["export", str(sample), "--output", str(out)]) == 1
    assert not out.exists()
    assert main(["export", str(sample), "--readable", "--output", str(out)]) == 0
    assert f"left out: {name} is damaged" in capsys.readouterr().err
    other = tmp_path / "other" / "pod"
    assert main(["import", str(other), "--input", str(out)]) == 1
    assert "use --new-epoch" in capsys.readouterr().err
    assert main(["import", str(other), "--input", str(out), "--new-epoch"]) == 0
    lines = [json.loads(line) for line in export(other)]
    positions = [line["position"] for line in lines if "position" in line]
    assert (positions[0], positions[-1] + 1) == kept
    assert problems(other) == []


@pytest.mark.rule("L-08")
@pytest.mark.parametrize(("name", "entries"), [(FIRST, "5, positions 10 to 15"), (SECOND, "10")])
def test_info_shows_what_is_left_of_a_damaged_log(
    sample: Path, capsys: pytest.CaptureFixture[str], name: str, entries: str
) -> None:
    flip(sample / name, 20 if name == FIRST else 80)  # in the header; in the state
    code, lines, _ = run(capsys, "info", sample)
    shown = "\n".join(lines)
    assert code == 1
    assert f"entries   {entries}" in shown
    assert "state     damaged" in shown
    assert f"damage    {name} is damaged at byte" in shown
    code, lines, _ = run(capsys, "info", "--json", sample)
    assert code == 1
    assert json.loads(lines[0])["damage"][0].startswith(name)


@pytest.mark.rule("L-13", "L-26")
def test_a_mark_is_no_incomplete_write(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = PodWithLog(tmp_path / "pod")
    pod.join("alice")
    pod.tick()
    pod.log.mark()
    assert main(["verify", str(tmp_path / "pod")]) == 0
    assert main(["info", str(tmp_path / "pod")]) == 0
    shown = capsys.readouterr().out
    assert "incomplete" not in shown
    assert "state     interrupted\n" in shown


@pytest.mark.rule("L-11")
def test_an_exported_log_is_imported_again_without_a_difference(
    sample: Path, tmp_path: Path
) -> None:
    lines = list(export(sample))
    imported = import_lines(lines, tmp_path / "other" / "pod")
    assert imported.entries == 15
    assert list(export(tmp_path / "other" / "pod")) == lines
    assert problems(tmp_path / "other" / "pod") == []
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["pod"]
    log = SegmentLog(OsDisk(tmp_path / "other" / "pod"))
    assert log.recover().stopped


@pytest.mark.rule("L-11", "L-28")
def test_cards_and_the_owners_of_names_survive_export_and_import(tmp_path: Path) -> None:
    log = new_log(tmp_path / "pod")
    presence = LogEntry("m0", GATEWAY, None, "system/presence", None, b"{}", ("ada",), time=1.0)
    update = LogEntry("m1", GATEWAY, (), "system/update", None, b"{}", time=1.0)
    entries = [
        msgspec.structs.replace(presence, owners=(OwnerState("ada", "company", 9.5),)),
        msgspec.structs.replace(update, card=b'{"name": "Ada"}'),
    ]
    log.write([NewRecord(BATCH, 0, 1.0, encode_batch(Batch(1, 0, 0, 1.0, entries)), 2)])
    log.stop(2, 1.0)
    import_lines(export(tmp_path / "pod"), tmp_path / "copy" / "pod")
    copy = SegmentLog(OsDisk(tmp_path / "copy" / "pod"))
    copy.recover()
    (record,) = copy.read(0)
    assert decode_batch(record.payload).entries == entries


@pytest.mark.rule("L-11")
@settings(max_examples=50)
@given(
    batches=st.lists(
        st.lists(st.tuples(st.text(), st.text(), st.none() | st.lists(st.text(), max_size=12))),
        max_size=5,
    )
)
def test_any_text_survives_export_and_import(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[tuple[str, str, list[str] | None]]],
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    log = new_log(folder / "pod")
    position = 0
    for index, rows in enumerate(batch for batch in batches if batch):
        entries = [
            LogEntry(id, "a", None if to is None else tuple(to), "chat", None, text.encode())
            for id, text, to in rows
        ]
        batch = Batch(1, index, position, 0.1 * index, entries)
        log.write([NewRecord(BATCH, position, 0.1 * index, encode_batch(batch), len(entries))])
        position += len(entries)
    log.stop(position, 10.0)
    lines = list(export(folder / "pod"))
    import_lines(lines, folder / "copy" / "pod")
    assert list(export(folder / "copy" / "pod")) == lines
    texts = [text.encode() for rows in batches for _, text, _ in rows]
    assert [json.loads(line)["text"].encode() for line in lines[2:]] == texts


@pytest.mark.rule("L-11")
def test_an_import_may_begin_a_new_epoch(sample: Path, tmp_path: Path) -> None:
    import_lines(export(sample), tmp_path / "copy", "another")
    assert {line.split(b'"')[3] for line in export(tmp_path / "copy") if b'"state"' in line} == {
        b"another"
    }
    assert problems(tmp_path / "copy") == []


@pytest.mark.rule("L-11")
def test_an_import_never_adds_to_a_folder(sample: Path) -> None:
    before = {path.name: path.read_bytes() for path in sample.iterdir()}
    with pytest.raises(LogToolError, match="is not empty"):
        import_lines(export(sample), sample)
    assert {path.name: path.read_bytes() for path in sample.iterdir()} == before


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [], "the input is empty"),
        (lambda lines: [b'{"a":1}'], "line 1"),
        (lambda lines: [lines[0].replace(b"mcpp-log", b"other")], "no exported log"),
        (lambda lines: [lines[0].replace(b'"version":1', b'"version":2')], "has version 2"),
        (lambda lines: lines[:1], "holds no state"),
        (lambda lines: [lines[0], *lines[2:]], "line 2: an entry before the first state"),
        (lambda lines: [*lines[:3], *lines[4:]], "line 4: position is 2 instead of 1"),
        (lambda lines: [*lines[:4], lines[4][:-9], *lines[5:]], "line 5"),
        (lambda lines: [*lines[:4], lines[4].replace(b'"index":1', b'"index":7')], "line 5: index"),
        (
            lambda lines: [*lines[:4], lines[4].replace(b'"term":1', b'"term":0')],
            "line 5: the term",
        ),
        (lambda lines: [*lines[:5], lines[5].replace(b'"term":1', b'"term":9')], "line 6: term or"),
        # Programs that show the time as a date would end with an error.
        (lambda lines: [*lines[:4], lines[4].replace(b'"time":', b'"time":9e300,"t":')], "line 5"),
        (lambda lines: [*lines[:4], lines[4].replace(b'"time":', b'"time":-1,"t":')], "line 5"),
    ],
)
@pytest.mark.rule("L-11")
def test_a_wrong_line_is_refused_and_nothing_is_left(
    sample: Path, tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], reason: str
) -> None:
    with pytest.raises(LogToolError, match=reason):
        import_lines(change(list(export(sample))), tmp_path / "new" / "pod")
    assert list(tmp_path.glob("new/*")) == []


# --- backup ---------------------------------------------------------------------------------------


@pytest.mark.rule("L-12")
@pytest.mark.parametrize("link", [True, False])
@pytest.mark.parametrize("stop", [True, False])
def test_a_backup_opens_as_a_stopped_log(tmp_path: Path, link: bool, stop: bool) -> None:
    source, copy = tmp_path / "a" / "pod", tmp_path / "b" / "pod"
    write_sample(source, stop=stop)
    found = back_up(source, copy, link=link)
    assert found == (2, 0, 15, 0)
    assert list(export(copy)) == list(export(source))
    assert problems(copy) == []
    assert ((source / FIRST).stat().st_ino == (copy / FIRST).stat().st_ino) == link
    recovery = SegmentLog(OsDisk(copy)).recover()
    assert recovery.stopped
    assert recovery.dropped_bytes == 0


def test_a_backup_of_a_log_path_can_take_its_place(tmp_path: Path) -> None:
    for pod in ("a", "b"):
        write_sample(tmp_path / "log" / pod, stop=True)
    assert main(["backup", str(tmp_path / "log"), str(tmp_path / "copy")]) == 0
    for pod in ("a", "b"):
        assert main(["verify", str(tmp_path / "copy"), "--pod", pod]) == 0
    assert sorted(each.name for each in (tmp_path / "copy").iterdir()) == ["a", "b"]
    assert main(["backup", str(tmp_path / "log" / "a"), str(tmp_path / "one")]) == 0
    assert main(["verify", str(tmp_path / "one")]) == 0


@pytest.mark.rule("L-12")
def test_a_backup_never_overwrites(sample: Path, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes").write_text("mine")
    with pytest.raises(LogToolError, match="is not empty"):
        back_up(sample, tmp_path / "copy")


# --- beside a running gateway ---------------------------------------------------------------------


@pytest.mark.rule("L-12", "L-13")
def test_reading_beside_a_writer_finds_no_problem_and_no_gap(tmp_path: Path) -> None:
    folder = tmp_path / "log" / "pod"
    pod = PodWithLog(folder)
    pod.join("alice")
    done = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            number = 0
            while not done.is_set():
                for _ in range(number % 7 + 1):
                    pod.say("alice", f"m{number}", "x" * (number * 37 % 3000))
                    number += 1
                pod.tick(0.01)
                pod.log.grow()
                if number % 5 == 0:
                    pod.roll()
                if number % 50 == 0:
                    pod.log.retain(since=None, max_bytes=60_000)
        except BaseException as error:
            failures.append(error)
            raise

    with in_use(folder):
        writer = threading.Thread(target=work)
        writer.start()
        try:
            for round in range(12):
                assert problems(folder) == []
                positions = [json.loads(line).get("position") for line in export(folder)]
                found = [position for position in positions if position is not None]
                assert [after - before for before, after in pairwise(found)] == [1] * len(found[1:])
                copy = tmp_path / f"copy-{round}" / "pod"
                back_up(folder, copy, link=round % 2 == 0)
                assert problems(copy) == []
                assert SegmentLog(OsDisk(copy), OPTIONS).recover().stopped
                assert main(["info", str(folder)]) == 0
        finally:
            done.set()
            writer.join()
    assert failures == []


@pytest.mark.rule("L-13")
@pytest.mark.parametrize("running", [True, False])
def test_a_record_that_is_being_written_is_no_problem(tmp_path: Path, running: bool) -> None:
    folder = tmp_path / "pod"
    write_sample(folder, stop=False)
    verification = Verification(folder)
    if running:
        with in_use(folder):
            verification = Verification(folder)
            assert verification.reader.running
    assert verification.run() == []
    assert verification.reader.unfinished_bytes > 0


# --- verify ---------------------------------------------------------------------------------------


@pytest.mark.rule("L-08", "L-13")
@settings(max_examples=200)
@given(data=st.data())
def test_verify_finds_every_flipped_bit(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "flips" / "pod"
    if not folder.exists():
        write_sample(folder, stop=True)
    path = data.draw(st.sampled_from([folder / FIRST, folder / SECOND]))
    content = path.read_bytes()
    at = data.draw(st.integers(0, len(content.rstrip(b"\0")) - 1))
    flipped = bytearray(content)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    lines = list(export(folder))
    path.write_bytes(flipped)
    try:
        try:
            found = problems(folder)
        except segments.LogFormatError:
            return
        # The last record of a log is a seal: without it, the log was interrupted.
        assert found or list(export(folder)) == lines
    finally:
        path.write_bytes(content)


@pytest.mark.rule("L-13")
@pytest.mark.parametrize("command", [["info"], ["verify"], ["export"], ["backup", "copy"]])
def test_a_log_without_a_readable_segment_is_reported_in_one_line(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "pod"
    write_sample(folder, stop=True)
    (folder / SECOND).unlink()
    damaged = bytearray((folder / FIRST).read_bytes())
    damaged[60] ^= 255
    (folder / FIRST).write_bytes(damaged)
    name, *target = command
    assert main([name, str(folder), *(str(tmp_path / each) for each in target)]) == 1
    shown = capsys.readouterr()
    assert f"{FIRST} is damaged at byte 0" in shown.out + shown.err


def new_log(folder: Path) -> SegmentLog:
    log = SegmentLog(OsDisk(folder), OPTIONS)
    log.recover()
    state = State("epoch", 1, 0, 0, 0.0)
    log.create(NewRecord(STATE, 0, 0.0, encode_state(state)), salt=1)
    return log


def entry(id: str) -> LogEntry:
    return LogEntry(id, "a", None, "chat", None, b"{}")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (encode_batch(Batch(1, 1, 7, 1.0, [entry("b")])), "the batch's position is 7"),
        (encode_batch(Batch(1, 1, 1, 1.0, [])), "the number of entries is 0"),
        (encode_batch(Batch(1, 1, 1, 0.9, [entry("b")])), "the batch's time is 0.9"),
        (encode_batch(Batch(1, 2, 1, 1.0, [entry("b")])), "the batch's index is 2 instead of 1"),
        (encode_batch(Batch(0, 1, 1, 1.0, [entry("b")])), "the term falls from 1 to 0"),
        (b"\xc1", "cannot be decoded"),
    ],
)
@pytest.mark.rule("L-03", "L-13")
def test_verify_checks_what_batches_say(tmp_path: Path, payload: bytes, reason: str) -> None:
    log = new_log(tmp_path)
    first = encode_batch(Batch(1, 0, 0, 1.0, [entry("a")]))
    log.write([NewRecord(BATCH, 0, 1.0, first, 1), NewRecord(BATCH, 1, 1.0, payload, 1)])
    log.stop(2, 2.0)
    found = problems(tmp_path)
    assert reason in found[0]


@pytest.mark.rule("L-03", "L-13")
def test_verify_reports_a_time_that_falls(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    for index, time in enumerate((5.0, 4.0)):
        batch = encode_batch(Batch(1, index, index, time, [entry(f"m{index}")]))
        log.write([NewRecord(BATCH, index, time, batch, 1)])
    log.stop(2, 9.0)
    assert "the time falls from 5.0 to 4.0" in problems(tmp_path)[0]


@pytest.mark.parametrize(
    ("members", "reason"),
    [
        ({"index": 3}, "the state's index is 3 instead of 5"),
        ({"position": 3}, "the state's position is 3"),
        ({"term": 0}, "the term falls"),
        ({"present": ()}, "participants"),
        ({"dormant_messages": 9}, "dormant contexts"),
        ({"window": "short"}, "does not end with the last entry"),
        ({"window": "other"}, "another id at position"),
    ],
)
@pytest.mark.rule("L-04", "L-13")
def test_verify_compares_states_with_the_log(
    sample: Path, tmp_path: Path, members: dict[str, object], reason: str
) -> None:
    lines = list(export(sample))
    at = max(number for number, line in enumerate(lines) if line.startswith(b'{"state"'))
    folder = tmp_path / "changed"
    import_lines(lines[:at], folder)
    log = SegmentLog(OsDisk(folder), OPTIONS)
    log.recover()
    newest = (sample / SECOND).read_bytes()
    length = int.from_bytes(newest[40:44], "little")
    state = decode_state(newest[72 : 72 + length])
    if "dormant_messages" in members:
        dormant = (msgspec.structs.replace(state.dormant[0], messages=9), *state.dormant[1:])
        members = {"dormant": dormant}
    elif members.get("window") == "short":
        members = {"window": state.window[:-1]}
    elif members.get("window") == "other":
        other = msgspec.structs.replace(state.window[-1], id="other")
        members = {"window": (*state.window[:-1], other)}
    wrong = msgspec.structs.replace(state, **members)
    assert log.roll(NewRecord(STATE, 10, state.time, encode_state(wrong)), salt=5)
    log.stop(10, state.time)
    found = problems(folder)
    assert len(found) == 1
    assert reason in found[0]


# --- the command ----------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, list[str], list[str]]:
    try:
        code = main([str(each) for each in arguments])
    except SystemExit as exit:
        code = int(str(exit.code))
    captured = capsys.readouterr()
    return code, captured.out.splitlines(), captured.err.splitlines()


def test_info_shows_a_log(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines, _ = run(capsys, "info", sample.parent)
    assert code == 0
    shown = "\n".join(lines)
    for part in ("pod       pod", "sys-0", "version 1", "15, positions 0 to 15", "stopped in an"):
        assert part in shown
    code, lines, _ = run(capsys, "info", "--json", "--pod", "pod", sample.parent)
    assert json.loads(lines[0])["end"] == 15
    with in_use(sample):
        assert "in use" in "\n".join(run(capsys, "info", sample)[1])


def test_verify_ends_with_1_and_a_line_for_each_problem(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "verify", sample)[:2] == (0, ["15 entries in 2 segments, 0 problems"])
    content = bytearray((sample / FIRST).read_bytes())
    content[700] ^= 1
    (sample / FIRST).write_bytes(content)
    code, lines, _ = run(capsys, "verify", sample)
    assert code == 1
    assert len(lines) == 2
    assert lines[0].startswith(f"{FIRST} is damaged at byte")


def test_verify_mentions_an_incomplete_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_sample(tmp_path / "pod", stop=False)
    code, lines, _ = run(capsys, "verify", tmp_path)
    assert code == 0
    assert "an incomplete write of" in lines[0]


def test_export_and_import_use_files_or_standard_streams(
    sample: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    file = tmp_path / "log.jsonl"
    assert main(["export", str(sample), "--output", str(file)]) == 0
    assert file.stat().st_mode & 0o777 == 0o600
    assert main(["export", str(sample)]) == 0
    assert capsysbinary.readouterr().out == file.read_bytes()
    assert main(["export", str(sample), "--output", str(file)]) == 1
    assert capsysbinary.readouterr().err == f"mcpp log: {file} exists\n".encode()
    assert main(["import", str(tmp_path / "new"), "--pod", "pod", "--input", str(file)]) == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(file.read_bytes())))
    assert main(["import", str(tmp_path / "new" / "other"), "--new-epoch"]) == 0
    assert list(export(tmp_path / "new" / "pod")) == file.read_bytes().splitlines()


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["info", "nowhere"], 1, "nowhere does not exist"),
        (["info", "log", "--pod", "other"], 1, "holds no log of pod 'other'"),
        (["info", "log", "--pod", ".."], 1, "'..' is no name of a pod"),
        (["info", "empty"], 1, "empty holds no log"),
        (["verify", "several"], 1, "holds the logs of a, b; choose one with --pod"),
        (["import", "log/pod", "--input", "nowhere"], 1, "nowhere: No such file or directory"),
        (["backup", "log", "log/pod"], 1, "log/pod is not empty"),
        (["what"], 2, "invalid choice"),
        ([], 2, "required"),
    ],
)
def test_an_error_is_one_line(
    sample: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("a", "b"):
        write_sample(tmp_path / "several" / name, stop=True)
    ended, _, lines = run(capsys, *arguments)
    assert ended == code
    assert reason in lines[-1]
    if code == 1:
        assert len(lines) == 1


@pytest.mark.rule("L-02")
@pytest.mark.parametrize("command", ["info", "verify", "export", "backup"])
def test_a_newer_log_is_refused_by_every_command(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    content = bytearray((sample / FIRST).read_bytes())
    content[7] = 2
    (sample / FIRST).write_bytes(content)
    more = [tmp_path / "copy"] if command == "backup" else []
    code, _, lines = run(capsys, command, sample, *more)
    assert code == 1
    assert lines == [
        f"mcpp log: {FIRST} has format version 2; this program reads version 1",
    ]


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("info", "verify", "export", "import", "backup"):
        code, lines, _ = run(capsys, command, "--help")
        assert code == 0
        assert len(lines) > 5
