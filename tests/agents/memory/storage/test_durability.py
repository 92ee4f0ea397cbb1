"""Durability: crashes, several processes, files of other programs and versions."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from mcpp_agents.memory import MemoryDraft, MemoryStore, MemoryStoreError
from mcpp_agents.memory.errors import StoreUnavailable
from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.fts_table import FtsTable, length_of
from mcpp_agents.memory.storage.schema import VERSION
from mcpp_agents.memory.storage.sqlite import SqliteEngine
from mcpp_agents.memory.store import BATCH
from tests.agents.memory.conftest import rows

# Prints an id after each answer until it is killed.
WRITER = """
import sys
from mcpp_agents.memory import MemoryDraft, MemoryStore
store = MemoryStore.open(sys.argv[1], embedder=None)
number = 0
while True:
    number += 1
    drafts = [
        MemoryDraft(
            title=f"{number}-{part}", content="crash apple " * 20, kind="message", source="s"
        )
        for part in range(3)
    ]
    for answer in store.remember_many(drafts):
        print(answer.id, flush=True)
"""

# Writes a number of items one by one, as one of several processes.
CONCURRENT_WRITER = """
import sys
from mcpp_agents.memory import MemoryStore
with MemoryStore.open(sys.argv[1], embedder=None) as store:
    for number in range(40):
        store.remember(f"Pear {number}", "shared", "message", idempotency_key=str(number))
        store.remember(f"{sys.argv[2]} {number}", "her own pear", "message")
        store.context("pear", limit=5)
"""


def writer(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("answers", [1, 20, 65])
@pytest.mark.rule("M-40")
def test_kill_9_loses_nothing_answered_and_corrupts_nothing(path: Path, answers: int) -> None:
    with writer(WRITER, str(path)) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline().strip() for _ in range(answers)]
        os.kill(process.pid, signal.SIGKILL)
        seen += process.stdout.read().split("\n")
    # The kill may truncate the last line.
    answered = {line for line in seen if len(line) == len("mem_") + 32}
    assert len(answered) >= answers
    with MemoryStore.open(path, embedder=None) as store:
        stored = {row[0] for row in rows(path, "SELECT id FROM memory")}
        assert answered <= stored
        assert len(stored) % 3 == 0  # a batch is whole or absent
        assert rows(path, "PRAGMA integrity_check") == [("ok",)]
        rows(path, "INSERT INTO memory_index (memory_index) VALUES ('integrity-check')")
        found = {hit for hit, _ in store.search("crash apple", limit=10_000)}
        assert found == stored
        store.remember("After", "crash apple", "note")


@pytest.mark.rule("M-41")
def test_two_processes_work_on_one_file(path: Path) -> None:
    processes = [writer(CONCURRENT_WRITER, str(path), name) for name in ("ann", "bob")]
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0]
    # Both act as the owner, so each key is stored once.
    assert rows(path, "SELECT count(*) FROM memory") == [(120,)]
    with MemoryStore.open(path, embedder=None) as store:
        assert len(store.search("pear", limit=500)) == 120


@pytest.mark.rule("M-41")
def test_an_existing_file_keeps_its_mode(path: Path) -> None:
    MemoryStore.open(path, embedder=None).close()
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    MemoryStore.open(path, embedder=None).close()
    assert path.stat().st_mode & 0o777 == 0o640


# Opens a new file for each line of input, at the same time as the other processes.
CREATOR = """
import sys
from mcpp_agents.memory import MemoryStore
for line in sys.stdin:
    with MemoryStore.open(line.strip(), embedder=None) as store:
        store.remember("Founded", "pear", "note")
    print("done", flush=True)
"""


def test_processes_may_create_a_file_at_the_same_time(tmp_path: Path) -> None:
    creators = [writer(CREATOR) for _ in range(3)]
    try:
        for number in range(15):
            for creator in creators:
                assert creator.stdin is not None
                creator.stdin.write(f"{tmp_path / str(number)}.db\n")
                creator.stdin.flush()
            for creator in creators:
                assert creator.stdout is not None
                assert creator.stdout.readline() == "done\n"
            assert rows(tmp_path / f"{number}.db", "SELECT sum(items) FROM tally") == [(3,)]
    finally:
        for creator in creators:
            creator.communicate(timeout=60)


def test_one_process_sees_what_another_stores(path: Path) -> None:
    with (
        MemoryStore.open(path, embedder=None) as one,
        MemoryStore.open(path, embedder=None) as other,
    ):
        assert one.context("apple").total_items == 0
        answer = other.remember("Apple", "red", "note")
        assert [item.id for item in one.context("apple").items] == [answer.id]
        one.forget(answer.id)
        assert other.context("apple").total_items == 0


def check_left_alone(path: Path, problem: str) -> None:
    before = path.read_bytes()
    with pytest.raises(MemoryStoreError, match=problem):
        MemoryStore.open(path, embedder=None)
    assert path.read_bytes() == before


@pytest.mark.rule("M-42")
@pytest.mark.parametrize("version", [0, 1, 2, 99])
def test_a_file_of_another_program_is_left_alone(path: Path, version: int) -> None:
    with closing(sqlite3.connect(path)) as raw:
        raw.execute("CREATE TABLE theirs (x)")
        raw.execute(f"PRAGMA user_version = {version}")
    check_left_alone(path, "another program")


@pytest.mark.rule("M-42")
@pytest.mark.parametrize("version", [VERSION + 1, 6, 99])
def test_a_file_of_another_version_is_refused_in_one_line(path: Path, version: int) -> None:
    MemoryStore.open(path, embedder=None).close()
    rows(path, "PRAGMA journal_mode = DELETE")
    rows(path, f"PRAGMA user_version = {version}")
    expected = f"The file has version {version}; this program supports version {VERSION} only"
    check_left_alone(path, f"^{expected}$")


def _forget_zebra(store: MemoryStore) -> None:
    for number in range(30):
        store.remember(f"Pear {number}", "shared pear", "message", source="talk")
    answer = store.remember("The zebra", "quagga okapi", "message", source="talk", tags=["tapir"])
    store.remember("Plum", "shared plum", "message", source="talk")
    store.forget(answer.id)


def _remains(path: Path) -> list[bytes]:
    found = b"".join(file.read_bytes() for file in path.parent.glob(f"{path.name}*")).lower()
    return [word for word in (b"zebra", b"quagga", b"okapi", b"tapir") if word in found]


@pytest.mark.rule("M-07")
def test_no_word_of_a_forgotten_item_is_left_in_the_file_or_its_log(path: Path) -> None:
    with MemoryStore.open(path, embedder=None) as store:
        _forget_zebra(store)
        assert _remains(path) == []
    assert _remains(path) == []


@pytest.mark.rule("M-07")
def test_in_a_large_file_forgotten_words_are_purged_on_close(path: Path) -> None:
    with MemoryStore(SqliteEngine(str(path), purged_at_once=0)) as store:
        _forget_zebra(store)
    assert _remains(path) == []
    rows(path, "INSERT INTO memory_index (memory_index) VALUES ('integrity-check')")


@pytest.mark.rule("M-07", "M-28")
def test_word_lists_follow_neighbours_successors_and_removals(path: Path) -> None:
    with MemoryStore.open(path, embedder=None) as store:
        said = ["Where is the walrus?", "At the pier, as always.", "And the heron?"]
        turns = [store.remember("Turn", text, "message", source="talk") for text in said]
        store.remember("Note", "The heron left", "note", related_to=[f"supersedes:{turns[0].id}"])
        store.forget(turns[1].id)
        written = rows(path, "SELECT * FROM word_list ORDER BY seq")
        current = [length_of(row[1]) for row in written if row[0] != 1]
        counted = [(len(current), sum(current))]
        assert rows(path, "SELECT items, words FROM tally") == counted
    with closing(sqlite3.connect(path)) as connection, closing(Tokenizer()) as tokenizer:
        connection.execute("DELETE FROM word_list")
        FtsTable(connection, tokenizer).add_lists(1, 4)
        read = connection.execute("SELECT * FROM word_list ORDER BY seq").fetchall()
    assert written == read


def test_a_reader_neither_delays_nor_fails_a_forget(path: Path) -> None:
    with MemoryStore.open(path, embedder=None) as store:
        store.remember("Pear", "shared pear", "note")
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM memory").fetchone()
            began = time.monotonic()
            _forget_zebra(store)
            assert time.monotonic() - began < 5
            assert reader.execute("SELECT count(*) FROM memory").fetchone() == (1,)
    assert _remains(path) == []


def test_a_file_that_is_not_a_database_is_refused(path: Path) -> None:
    path.write_text("a text file that is long enough to be recognized as such")
    with pytest.raises(MemoryStoreError, match="not a database"):
        MemoryStore.open(path, embedder=None)


@contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Lock a file for writing, as another process would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


@pytest.mark.rule("M-43")
def test_a_lock_of_another_process_refuses_writes_but_delays_no_pack(path: Path) -> None:
    with MemoryStore(SqliteEngine(str(path), busy_seconds=0.1)) as store:
        store.remember("Pear", "shared pear", "note")
        with locked(path) as other:
            with pytest.raises(StoreUnavailable, match="busy; try again"):
                store.remember("Plum", "shared plum", "note")
            began = time.monotonic()
            assert store.context("pear").total_items == 1
            assert time.monotonic() - began < 5
            other.execute("ROLLBACK")
        store.remember("Plum", "shared plum", "note")
    tools = rows(path, "SELECT tool FROM audit ORDER BY id")
    assert sorted(tools) == [("context",), ("remember",), ("remember",), ("remember",)]


@pytest.mark.rule("M-43")
def test_packs_are_compiled_while_a_write_waits_for_another_process(path: Path) -> None:
    with MemoryStore(SqliteEngine(str(path), busy_seconds=60)) as store:
        store.remember("Pear", "shared pear", "note")
        with locked(path) as other:
            writer = threading.Thread(target=store.remember, args=("Plum", "late plum", "note"))
            writer.start()
            assert store.context("pear").total_items == 1
            assert writer.is_alive()
            other.execute("ROLLBACK")
            writer.join(30)
        assert store.context("plum").total_items == 1


@pytest.mark.rule("M-43")
def test_an_audit_row_that_cannot_be_written_is_logged(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(SqliteEngine(str(path)))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store.context("pear")
        store.close()
    assert "audit entry lost" in caplog.text
    assert "pear" not in caplog.text


@pytest.mark.rule("M-01")
def test_many_items_are_stored_in_batches_of_a_thousand(path: Path) -> None:
    drafts = [MemoryDraft(title=f"Pear {n}", content="pear", kind="note") for n in range(BATCH + 1)]
    with MemoryStore.open(path, embedder=None) as store:
        assert len({answer.id for answer in store.remember_many(drafts)}) == BATCH + 1
    lengths = rows(path, "SELECT json_array_length(details, '$.ids') FROM audit ORDER BY id")
    assert lengths == [(BATCH,), (1,)]


def test_the_word_index_has_few_segments_however_items_are_stored(path: Path) -> None:
    with MemoryStore.open(path, embedder=None) as store:
        for number in range(15):
            store.remember(f"Title {number}", "One write each.", "note")
    [(segments,)] = rows(path, "SELECT count(DISTINCT segid) FROM memory_index_idx")
    assert segments <= 6
