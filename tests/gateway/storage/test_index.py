"""The index agrees with the log, however far behind it is and whatever happened to its file."""

import logging
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp.filters import everything
from mcpp.protocol.contexts import Lineage
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.history.pages import read_page
from mcpp_gateway.core.history.query import parse_query
from mcpp_gateway.core.records import Batch, LogEntry, encode_batch
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.file_source import FileSource
from mcpp_gateway.storage.helper.messages import (
    IndexRequest,
    encode,
    read_message,
    write_message,
)
from mcpp_gateway.storage.helper.process import HelperProcess
from mcpp_gateway.storage.index import log_index as index_module
from mcpp_gateway.storage.index.database import IndexViews
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.index.progress import IndexProgress
from mcpp_gateway.storage.segment_log import SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import BATCH, STATE, NewRecord, segment_name

OPTIONS = SegmentOptions(segment_bytes=4096, chunk_bytes=65_536, reserve_bytes=1024)
pytestmark = pytest.mark.rule("L-14")


class IndexedItem(NamedTuple):
    id: str
    sender: str
    kind: str
    context: str | None


ITEMS = st.builds(
    IndexedItem,
    st.sampled_from([f"m{number}" for number in range(8)]),
    st.sampled_from(["alice", "bob"]),
    st.sampled_from(["chat", "mcp/request"]),
    st.sampled_from([None, "task", "step"]),
)


class IndexedLog:
    """A log of known items."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "index.sqlite"
        self.items: list[IndexedItem] = []
        self.log = SegmentLog(OsDisk(folder), OPTIONS)
        self.log.recover()
        self.log.create(NewRecord(STATE, 0, 0.0, b""), salt=1)
        self._batches = 0

    def add(self, items: list[IndexedItem]) -> None:
        entries = [
            LogEntry(id, sender, None, kind, None if context is None else Lineage(context), b"{}")
            for id, sender, kind, context in items
        ]
        at = len(self.items)
        data = encode_batch(Batch(1, self._batches, at, float(at), entries))
        self.log.grow()
        self.log.write([NewRecord(BATCH, at, float(at), data, len(items))])
        self.log.sync()
        self.items += items
        self._batches += 1

    def roll(self) -> None:
        end = len(self.items)
        assert self.log.roll(NewRecord(STATE, end, float(end), b""), salt=end + 1)

    def open(self, epoch: str = "epoch") -> LogIndex:
        """Return an index with small parts."""
        index = LogIndex(self.folder, self.log, epoch)
        index.text.part_bits, index.text.found_at_once = 3, 2
        index.ids.part_bits = 4
        index.rest_seconds = 0.001
        return index

    @contextmanager
    def index(self, *, caught_up: bool = True, epoch: str = "epoch") -> Iterator[LogIndex]:
        index = self.open(epoch)
        index.start(len(self.items))
        try:
            if caught_up:
                self.wait(index)
            yield index
        finally:
            index.stop()

    def wait(self, index: LogIndex) -> None:
        deadline = time.monotonic() + 20
        while self._behind(index) and time.monotonic() < deadline:
            time.sleep(0.005)
        assert not self._behind(index)

    def _behind(self, index: LogIndex) -> bool:
        return min(index.ids.indexed_to, index.text.indexed_to) < len(self.items)

    def check(self, index: LogIndex) -> None:
        """Compare every lookup with a search through the list."""
        start = self.log.start
        known = list(enumerate(self.items))[start:]
        for id in {item.id for item in self.items} | {"unknown"}:
            found = [position for position, item in known if item.id == id]
            assert index.find(id) == (found[-1] if found else None)
        for query in QUERIES:
            wanted = query.get("filter", {"all": []})
            context = query.get("context")
            found = [
                position
                for position, item in known
                if item.sender == wanted.get("from", item.sender)
                and item.kind == wanted.get("kind", item.kind)
                and context in (None, item.context)
            ]
            assert self.search(index, query) == found

    def search(self, index: LogIndex, query: dict[str, Any]) -> list[int]:
        """Return all positions that a query finds, oldest first."""
        source = FileSource(self.log, index, len(self.items))
        parsed = parse_query({**query, "order": "oldest", "limit": 500})
        found: list[int] = []
        rest = None
        while True:
            page = read_page(
                msgspec.structs.replace(parsed, rest=rest), Rights("x", everything), source
            )
            found += [each.position for each in page.found]
            if page.rest is None:
                return found
            rest = page.rest


QUERIES: list[dict[str, Any]] = [
    {},
    {"filter": {"from": "alice"}},
    {"filter": {"kind": "mcp/request"}},
    {"context": "task"},
    {"filter": {"from": "bob"}, "context": "step"},
]


def many(count: int) -> list[IndexedItem]:
    return [IndexedItem(f"m{number}", "alice", "chat", "task") for number in range(count)]


@pytest.mark.rule("L-01")
def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    log = IndexedLog(tmp_path)
    log.path.touch(0o644)  # as an earlier release left it
    log.add(many(3))
    with log.index():
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert {"index.sqlite", "index.sqlite-wal", "text.sqlite", "text.sqlite-wal"} < modes.keys()
    assert set(modes.values()) == {0o600}


@settings(max_examples=30)
@given(
    steps=st.lists(
        st.lists(ITEMS, min_size=1, max_size=6)
        | st.sampled_from(["roll", "retain", "restart", "wait", "advance"]),
        max_size=15,
    )
)
def test_lookups_agree_with_a_search_through_the_log(
    tmp_path_factory: pytest.TempPathFactory, steps: list[list[IndexedItem] | str]
) -> None:
    log = IndexedLog(tmp_path_factory.mktemp("index"))
    index = log.open()
    index.start(0)
    try:
        for step in steps:
            if isinstance(step, list):
                log.add(step)
                index.advance(len(log.items))
            elif step == "roll":
                log.roll()
            elif step == "retain":
                log.log.retain(since=len(log.items) / 2, max_bytes=None)
            elif step == "restart":
                index.stop()
                index = log.open()
                index.start(len(log.items))
            elif step == "wait":
                log.wait(index)
            log.check(index)
    finally:
        index.stop()


@pytest.mark.parametrize("damage", ["deleted", "foreign", "text", "zeros", "torn", "other epoch"])
def test_a_damaged_or_foreign_index_is_built_again(tmp_path: Path, damage: str) -> None:
    log = IndexedLog(tmp_path)
    log.add(many(3000))
    with log.index():
        pass
    content = log.path.read_bytes()
    if damage == "deleted":
        log.path.unlink()
    elif damage == "foreign":
        log.path.unlink()
        with sqlite3.connect(log.path) as database:
            database.execute("CREATE TABLE other (a)")
        database.close()
    elif damage == "text":
        log.path.write_bytes(b"this is no database")
    elif damage == "zeros":
        log.path.write_bytes(bytes(len(content)))
    elif damage == "torn":
        half = len(content) // 2
        log.path.write_bytes(content[:4096] + b"\xff" * (half - 4096) + content[half:])
    with log.index(epoch="other" if damage == "other epoch" else "epoch") as index:
        assert index.find("m2999") == 2999
        log.check(index)


def test_damage_found_while_running_is_repaired(tmp_path: Path) -> None:
    log = IndexedLog(tmp_path)
    log.add(many(3000))
    with log.index():
        pass
    with log.index() as index:
        with log.path.open("r+b") as file:
            file.seek(4096)
            file.write(b"\xff" * (log.path.stat().st_size - 4096))
        for number in range(5):
            log.add([IndexedItem(f"new{number}", "bob", "chat", None)])
            index.advance(len(log.items))
            log.wait(index)
    with log.index() as index:
        assert index.find("new4") == 3004


def test_an_index_of_a_longer_log_is_not_used(tmp_path: Path) -> None:
    """As after a backup was restored."""
    log = IndexedLog(tmp_path / "a")
    log.add(many(10))
    with log.index():
        pass
    other = IndexedLog(tmp_path / "b")
    other.add([IndexedItem(f"x{number}", "bob", "chat", None) for number in range(4)])
    log.path.rename(other.path)
    with other.index() as index:
        assert index.find("m2") is None
        other.check(index)
    with other.index(caught_up=False) as index:
        assert index.ids.indexed_to == 4


def test_an_index_of_another_branch_of_the_log_is_not_used(tmp_path: Path) -> None:
    log = IndexedLog(tmp_path / "a")
    log.add(many(10))
    with log.index():
        pass
    other = IndexedLog(tmp_path / "b")
    other.add([IndexedItem(f"x{number}", "bob", "chat", None) for number in range(20)])
    log.path.rename(other.path)
    with other.index() as index:
        assert index.find("m2") is None
        other.check(index)


def test_far_behind_the_index_catches_up_before_the_start_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_module, "_MAX_BEHIND", 100)
    monkeypatch.setattr(IndexProgress, "least_entries", 100)
    monkeypatch.setattr(IndexProgress, "report_seconds", 0.0)
    monkeypatch.setattr(index_module, "_REBUILD_AT_ONCE", 150)
    caplog.set_level(logging.INFO, "mcpp.gateway")
    log = IndexedLog(tmp_path)
    for _ in range(10):
        log.add(many(100))
    with log.index(caught_up=False) as index:
        assert index.ids.indexed_to == 1000
        log.check(index)
    records = [each for each in caplog.records if "indexing the ids" in each.message]
    shares = [vars(each)["progress"] for each in records]
    assert shares == [0.0, 0.2, 0.4, 0.6, 0.8]
    assert "indexed the ids of the log" in caplog.messages


def test_a_deleted_text_index_is_built_again_with_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = IndexedLog(tmp_path)
    log.add(many(500))
    with log.index():
        pass
    (tmp_path / "text.sqlite").unlink()
    monkeypatch.setattr(IndexProgress, "least_entries", 100)
    monkeypatch.setattr(IndexProgress, "report_seconds", 0.0)
    monkeypatch.setattr(index_module, "_TEXT_AT_ONCE", 1)
    caplog.set_level(logging.INFO, "mcpp.gateway")
    for _ in range(9):
        log.add(many(500))
    with log.index() as index:
        log.check(index)
    records = [each for each in caplog.records if "texts of the log" in each.message]
    *building, end = records
    shares = [vars(each)["progress"] for each in building]
    assert len(shares) >= 8
    assert shares == sorted(shares)
    assert end.message == "indexed the texts of the log"


def test_retention_drops_parts(tmp_path: Path) -> None:
    log = IndexedLog(tmp_path)
    for _ in range(10):
        log.add(many(10))
        log.roll()
    with log.index() as index:
        log.log.retain(since=75.0, max_bytes=None)
        assert log.search(index, {"filter": {"kind": "chat"}}) == list(range(80, 100))
        log.add(many(1))
        index.advance(101)
        deadline = time.monotonic() + 20
        while (index.ids.parts[0], index.text.parts[0]) != (5, 10):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        log.check(index)


@pytest.mark.rule("L-25")
def test_an_index_that_outgrows_the_log_is_built_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_MAX_STALE_BYTES", 0)
    log = IndexedLog(tmp_path)
    for _ in range(5):
        log.add(many(200))
        log.roll()
    index = log.open()
    index.text.part_bits = 15  # a part that holds everything, and so is not dropped
    index.start(1000)
    try:
        log.wait(index)
        before = index.text.generation
        log.log.retain(since=None, max_bytes=1)
        log.add(many(300))
        index.advance(1300)
        log.wait(index)
        after = index.text.generation
        assert after > before
        log.add(many(1))
        index.advance(1301)
        log.wait(index)
        assert index.text.generation == after
        log.check(index)
    finally:
        index.stop()


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    log = IndexedLog(tmp_path)
    for number in range(3):
        log.add([IndexedItem(f"{number}-{each}", "bob", "chat", None) for each in range(10)])
        log.roll()
    path = tmp_path / segment_name(10)
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with log.index() as index:
        everything_else = [*range(10), *range(20, 30)]
        assert log.search(index, {}) == everything_else
        assert log.search(index, {"filter": {"from": "bob"}}) == everything_else
        assert index.find("1-5") is None
        assert index.find("2-5") == 25


def test_stopping_does_not_wait_for_the_rest(tmp_path: Path) -> None:
    log = IndexedLog(tmp_path)
    for _ in range(15):
        log.add(many(1000))
    began = time.monotonic()
    with log.index(caught_up=False):
        pass
    assert time.monotonic() - began < 2


def test_a_folder_without_space_for_an_index_is_no_obstacle(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = IndexedLog(tmp_path)
    log.add(many(20))
    for name in ("index.sqlite", "text.sqlite"):
        (tmp_path / name).mkdir()  # SQLite can neither open nor create it
    with log.index(caught_up=False) as index:
        log.check(index)
        assert index.text.indexed_to == 0
    assert "the log index cannot be opened" in caplog.messages


def test_a_lookup_reads_a_bounded_part_of_what_is_not_indexed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_MAX_SCAN_BYTES", 1)
    log = IndexedLog(tmp_path)
    for number in range(3):
        log.add([IndexedItem(f"{number}-{each}", "bob", "chat", None) for each in range(10)])
        log.roll()
    log.add([IndexedItem("last", "bob", "chat", None)])
    index = log.open()
    index.committed = 31
    assert index.find("last") == 30
    assert index.find("1-5") is None, "it is too far back"
    assert index.lookup("last") is None, "it is not indexed"
    index.start(31)
    log.wait(index)
    assert index.find("1-5") == 15
    index.stop()


def test_many_entries_are_indexed_by_another_process(tmp_path: Path) -> None:
    log = IndexedLog(tmp_path)
    for number in range(8):
        log.add(many(500) if number % 2 else many(500)[::-1])
        log.roll()
    helper = HelperProcess()
    try:
        found, deadline = None, time.monotonic() + 20
        while found is None or found.text.indexed_to < 4000:
            assert time.monotonic() < deadline
            found = helper.index(log.log, "epoch", 0, 0, 4000)
        for each in found:
            assert (each.indexed_to, each.last_id) == (4000, "m499")
    finally:
        helper.close()
    # The gateway goes on with it.
    index = LogIndex(tmp_path, log.log, "epoch", index_elsewhere=helper.index)
    index.rest_seconds = 0.001
    index.start(4000)
    try:
        assert (index.ids.indexed_to, index.text.indexed_to) == (4000, 4000)
        log.add(many(3))
        index.advance(4003)
        log.wait(index)
        log.check(index)
    finally:
        index.stop()


@pytest.mark.rule("L-27")
def test_an_index_that_is_far_behind_is_written_without_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_MAX_WAITING_ENTRIES", 3000)
    log = IndexedLog(tmp_path)
    for _ in range(20):
        log.add(many(500))
    elsewhere = LogIndex(tmp_path, log.log, "epoch")
    waiting: list[int] = []
    rests: list[float] = []

    def index_some(
        log: SegmentLog, epoch: str, ids_generation: int, text_generation: int, committed: int
    ) -> IndexViews:
        elsewhere.committed = min(committed, elsewhere.text.indexed_to + 2000)
        elsewhere.index_here(60)
        elsewhere.close()
        waiting.append(committed - elsewhere.committed)
        return elsewhere.views()

    class WatchedIndex(LogIndex):
        def _rest(self, spent: float, behind: int) -> float:
            rests.append(super()._rest(spent, behind))
            return 0.0

    index = WatchedIndex(tmp_path, log.log, "epoch", index_elsewhere=index_some)
    index.start(10_000)
    try:
        log.wait(index)
        log.check(index)
    finally:
        index.stop()
    assert waiting == [8000, 6000, 4000, 2000]
    assert rests[:3] == [0.0, 0.0, 0.0]
    assert all(rests[3:])


def test_the_other_process_ends_silently_with_a_gateway_that_was_killed(tmp_path: Path) -> None:
    log = IndexedLog(tmp_path)
    log.add(many(10))
    request = IndexRequest(
        log=log.log.view(), epoch="epoch", ids_generation=0, text_generation=0, committed=10
    )
    command = [sys.executable, "-m", "mcpp_gateway.storage.helper.program"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0) as helper:
        assert helper.stdin is not None
        assert helper.stdout is not None
        assert helper.stderr is not None
        assert read_message(helper.stdout) == b"ready"
        helper.stdout.close()
        write_message(helper.stdin, encode(request))
        assert helper.stderr.read() == b""
    assert helper.returncode == 0


def test_without_the_other_process_a_thread_indexes(tmp_path: Path) -> None:
    log = IndexedLog(tmp_path)
    log.add(many(4000))
    asked: list[int] = []

    def refuse(
        log: SegmentLog, epoch: str, ids_generation: int, text_generation: int, committed: int
    ) -> None:
        asked.append(committed)

    index = LogIndex(tmp_path, log.log, "epoch", index_elsewhere=refuse)
    index.rest_seconds = 0.001
    index.start(4000)
    try:
        log.wait(index)
        log.check(index)
    finally:
        index.stop()
    assert asked
