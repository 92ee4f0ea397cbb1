"""The journal in files: lookups and reads take bounded pieces of a long log."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcpp_gateway.core.journal import Window
from mcpp_gateway.core.records import Batch, LogEntry, encode_batch
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.file_journal import FileJournal
from mcpp_gateway.storage.group_writer import GroupWriter, Unwritten, WriterOptions
from mcpp_gateway.storage.index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import BATCH, STATE, NewRecord
from tests.gateway.harness import ManualLoop

ENTRIES, BATCH_ENTRIES, TEXT_BYTES = 2_000, 20, 2_000
WINDOW = 100


class StoredJournal:
    """A journal of many entries; only the last of them are in its window."""

    def __init__(self, folder: Path) -> None:
        self.log = SegmentLog(OsDisk(folder))
        self.log.recover()
        self.log.create(NewRecord(STATE, 0, 0.0, b""), salt=1)
        window = Window(WINDOW, 1 << 30)
        for number, at in enumerate(range(0, ENTRIES, BATCH_ENTRIES)):
            entries = [
                LogEntry(f"id-{each:06}", "a", None, "chat", None, b"x" * TEXT_BYTES)
                for each in range(at, at + BATCH_ENTRIES)
            ]
            data = encode_batch(Batch(1, number, at, float(at), entries))
            self.log.grow()
            self.log.write([NewRecord(BATCH, at, float(at), data, len(entries))])
            for entry in entries:
                window.append(entry)
        self.log.sync()
        window.trim(window.end)
        self.loop = ManualLoop()
        self.executor = ThreadPoolExecutor(1)
        writer = GroupWriter(
            self.log,
            WriterOptions(),
            loop=self.loop,
            executor=self.executor,
            clock=lambda: 0.0,
            on_failure=lambda error: None,
            unwritten=Unwritten(),
        )
        self.journal = FileJournal(self.log, writer, window)

    def seek(self, id: str) -> tuple[int | None, list[int]]:
        """Return what a lookup finds, and what its pieces cost."""
        costs: list[int] = []
        pieces = self.journal.seek(id)
        while True:
            try:
                costs.append(next(pieces))
            except StopIteration as end:
                return end.value, costs

    def close(self) -> None:
        self.executor.shutdown()
        self.loop.close()
        self.log.close()


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[StoredJournal]:
    found = StoredJournal(tmp_path)
    yield found
    found.close()


@pytest.mark.rule("G-57", "L-14")
@pytest.mark.parametrize("number", [0, 777, ENTRIES - WINDOW - 1])
def test_without_an_index_an_id_is_found_in_bounded_pieces(
    stored: StoredJournal, number: int
) -> None:
    found, costs = stored.seek(f"id-{number:06}")
    assert found == number + 1
    assert len(costs) > 5
    assert max(costs) <= 2 * 262_144 // 4096


def test_an_id_in_the_window_is_found_without_reading(stored: StoredJournal) -> None:
    assert stored.seek(f"id-{ENTRIES - 1:06}") == (ENTRIES, [])


@pytest.mark.rule("G-57", "L-14")
def test_only_what_is_neither_indexed_nor_in_the_window_is_searched(
    stored: StoredJournal, tmp_path: Path
) -> None:
    index = LogIndex(tmp_path / "index.sqlite", stored.log, "epoch")
    stored.journal.use_index(index)
    assert len(stored.seek("unknown")[1]) > 5
    index.start(ENTRIES)
    try:
        while index.indexed_to < ENTRIES - WINDOW:
            index.advance(ENTRIES)
        assert stored.seek("unknown") == (None, [])
        assert stored.seek("id-000005") == (6, [])
    finally:
        index.stop()


@pytest.mark.rule("G-57")
def test_a_read_takes_a_bounded_number_of_bytes(stored: StoredJournal) -> None:
    position = 0
    while position < ENTRIES:
        found = stored.journal.read(position, ENTRIES)
        assert [entry.id for entry in found[:1]] == [f"id-{position:06}"]
        position += len(found)
        if position < ENTRIES - WINDOW:
            assert len(found) * TEXT_BYTES <= 2 * 262_144
