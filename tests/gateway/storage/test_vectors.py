"""Recorded files of every version of the format can still be read."""

import json
import shutil
from pathlib import Path

import pytest

from mcpp_gateway.core.records import decode_batch, decode_state
from mcpp_gateway.log_tools.export import export
from mcpp_gateway.log_tools.verify import Verification
from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.segment_log import SegmentLog
from tests.gateway.storage.sample_log import VECTORS

CASES = sorted(path for path in VECTORS.glob("*/*") if path.is_dir())
AGENTS = tuple(f"agent-{number}" for number in range(30))
# Who is present, and the dormant contexts, as of the last state.
STATES = {
    "stopped": (("alice",), ["step", "task"]),
    "crashed": (("alice",), ["step", "task"]),
    "fork": (AGENTS, ["task-0", "task-1", "task-2"]),
}
pytestmark = pytest.mark.rule("L-02")


def test_there_are_vectors() -> None:
    assert [path.name for path in CASES] == ["crashed", "fork", "stopped"]


@pytest.mark.parametrize("folder", CASES, ids=str)
def test_a_recorded_log_has_its_expected_contents(folder: Path) -> None:
    expected = folder.with_suffix(".jsonl").read_bytes().splitlines()
    assert [json.loads(line) for line in export(folder)] == [json.loads(line) for line in expected]
    assert Verification(folder).run() == []


@pytest.mark.parametrize("folder", CASES, ids=str)
def test_a_recorded_log_can_be_opened_by_a_gateway(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "pod")
    log = SegmentLog(OsDisk(copy))
    recovery = log.recover()
    assert recovery.unreadable == []
    assert recovery.stopped == (folder.name != "crashed")
    assert (recovery.dropped_bytes > 0) == (folder.name == "crashed")
    assert recovery.state is not None
    state = decode_state(recovery.state.payload)
    present, dormant = STATES[folder.name]
    assert state.present == present
    assert [each.id for each in state.dormant] == dormant
    entries = [entry for record in log.read(0) for entry in decode_batch(record.payload).entries]
    lines = folder.with_suffix(".jsonl").read_bytes().splitlines()
    expected = [json.loads(line) for line in lines]
    texts = [line["text"] for line in expected if "text" in line]
    assert [entry.text.decode() for entry in entries] == texts


@pytest.mark.rule("L-03", "L-21", "L-26")
def test_a_recorded_fork_has_its_origin_its_erasure_and_its_mark(tmp_path: Path) -> None:
    copy = shutil.copytree(VECTORS / "v1" / "fork", tmp_path / "pod")
    log = SegmentLog(OsDisk(copy))
    recovery = log.recover()
    assert recovery.state is not None
    origin = decode_state(recovery.state.payload).origin
    assert origin is not None
    assert origin.pod == "pod"
    entries = [entry for record in log.read(0) for entry in decode_batch(record.payload).entries]
    assert [entry.id for entry in entries if entry.erased] == ["m4"]
    assert AGENTS[20:] in [entry.about for entry in entries]
    name = max(OsDisk(copy).names())
    file = OsDisk(copy).open(name)
    header = segments.decode_header(name, file.read(0, segments.HEADER_BYTES))
    assert header is not None
    assert segments.is_marked(file, header.salt, log.written_bytes)
