"""Recorded files of every version of the format can still be read."""

import json
import shutil
from pathlib import Path

import pytest

from mcpp_gateway.core.records import decode_batch, decode_state
from mcpp_gateway.log_tools.export import export
from mcpp_gateway.log_tools.verify import Verification
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.segment_log import SegmentLog
from tests.gateway.storage.sample_log import VECTORS

CASES = sorted(path for path in VECTORS.glob("*/*") if path.is_dir())
pytestmark = pytest.mark.rule("L-02")


def test_there_are_vectors() -> None:
    assert [path.name for path in CASES] == ["crashed", "stopped"]


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
    assert recovery.stopped == (folder.name == "stopped")
    assert (recovery.dropped_bytes > 0) == (folder.name == "crashed")
    assert recovery.state is not None
    state = decode_state(recovery.state.payload)
    assert state.present == ("alice",)
    assert [each.id for each in state.dormant] == ["step", "task"]
    entries = [entry for record in log.read(0) for entry in decode_batch(record.payload).entries]
    lines = folder.with_suffix(".jsonl").read_bytes().splitlines()
    expected = [json.loads(line) for line in lines]
    texts = [line["text"] for line in expected if "text" in line]
    assert [entry.text.decode() for entry in entries] == texts
