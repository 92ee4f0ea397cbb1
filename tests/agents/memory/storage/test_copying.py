"""`mcpp memory copy`: a file into a database."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mcpp_agents.memory import MemoryDraft, MemoryStore, MemoryStoreError, Principal
from mcpp_agents.memory.commands import main
from tests.agents.memory.conftest import ManualClock, audited, rows

psycopg = pytest.importorskip("psycopg")
np = pytest.importorskip("numpy")
pytest.importorskip("psycopg_pool")

from mcpp_agents.memory.storage.postgres import copying  # noqa: E402
from mcpp_agents.memory.storage.postgres.copying import copy_file  # noqa: E402
from mcpp_agents.memory.storage.postgres.postgres import PostgresEngine  # noqa: E402
from tests.agents.memory.search.test_embedding import Colours  # noqa: E402

ALICE = Principal("alice", frozenset({"web"}), "acme")
POD = Principal.for_pod("demo")


@pytest.fixture
def file(tmp_path: Path, clock: ManualClock) -> Path:
    path = tmp_path / "memory.db"
    with MemoryStore.open(path, embedder=Colours(), clock=clock) as store:
        old = store.remember("Old", "a poppy", "decision")
        store.remember("New", "some grass", "decision", related_to=[f"supersedes:{old.id}"])
        gone = store.remember("Gone", "zebra", "note")
        store.forget(gone.id)
        ann = store.remember("Ann", "Which poppy?", "message", source="D1:1")
        store.remember("Bob", "That one.", "message", source="D1:2", related_to=[ann.id])
        store.acting_as(ALICE).remember("Of the web", "ruby sky", "note", project="web")
        bus = store.acting_as(POD, author="eve", origin="bus")
        bus.remember_many(
            [MemoryDraft(title="Bus", content="sky", idempotency_key="k")],
            metadata={"lineage": ["c1"]},
        )
        store.acting_as(POD).opt_out({"c9"})
        store.remember_many(MemoryDraft(title=f"N{n}", content=f"grass {n}") for n in range(40))
        store.embed_pending()
    return path


def packs(location: str | Path, clock: ManualClock) -> list[Any]:
    with MemoryStore.open(location, embedder=Colours(), clock=clock) as store:
        return [
            [(item.id, item.score, item.reason, item.related) for item in pack.items]
            for caller in (store, store.acting_as(ALICE), store.acting_as(POD))
            for goal in ("poppy", "which one", "grass 7", "sky zebra")
            for pack in [caller.context(goal)]
        ]


@pytest.mark.rule("M-66")
def test_a_copy_answers_like_the_file(file: Path, database_url: str, clock: ManualClock) -> None:
    before = audited(file)
    report = copy_file(file, database_url)
    assert (report.items, report.relations, report.vectors, report.verified) == (46, 2, 46, 46)
    assert audited(database_url) == before
    for copied, original in zip(packs(database_url, clock), packs(file, clock), strict=True):
        for found, expected in zip(copied, original, strict=True):
            # In a file, superseded items and those of other scopes have a part in averages.
            assert found == (expected[0], pytest.approx(expected[1], abs=0.05), *expected[2:])
    with MemoryStore.open(database_url, embedder=None) as store:
        assert store.acting_as(POD).opted_out() == {"c9"}
        bus = store.acting_as(POD, author="eve", origin="bus")
        assert bus.stored_under("k") is not None


@pytest.mark.rule("M-66")
def test_a_repeated_copy_adds_what_is_new(file: Path, database_url: str) -> None:
    copy_file(file, database_url)
    with MemoryStore.open(file, embedder=None) as store:
        store.remember("Later", "sky", "note")
    again = copy_file(file, database_url)
    assert (again.items, again.relations, again.vectors, again.audit) == (1, 0, 0, 1)
    assert again.verified == 47


@pytest.mark.rule("M-07", "M-66")
def test_a_repeated_copy_does_not_bring_back_what_was_forgotten(
    file: Path, database_url: str
) -> None:
    copy_file(file, database_url)
    with MemoryStore.open(database_url, embedder=None) as store:
        [new, bob] = [
            id for (id,) in rows(file, "SELECT id FROM memory WHERE title IN ('New', 'Bob')")
        ]
        store.forget(new)
        store.forget(bob)
    again = copy_file(file, database_url)
    assert (again.items, again.relations, again.vectors) == (0, 0, 0)
    assert (again.verified, again.forgotten) == (44, 2)
    assert str(again).endswith("verified 44 items; left out 2 that were forgotten there")
    assert rows(database_url, "SELECT id FROM memory WHERE title IN ('New', 'Bob')") == []


@pytest.mark.rule("M-07", "M-66")
def test_what_was_forgotten_in_the_file_since_is_erased(
    file: Path, database_url: str, clock: ManualClock
) -> None:
    draft = MemoryDraft(title="Summary", content="sky", idempotency_key="rolling")
    with MemoryStore.open(file, embedder=None) as store:
        store.replace(draft, metadata={"n": 1})
    copy_file(file, database_url)
    with MemoryStore.open(file, embedder=None) as store:
        [new, bob] = [
            id for (id,) in rows(file, "SELECT id FROM memory WHERE title IN ('New', 'Bob')")
        ]
        store.forget(new)  # what it superseded is current again
        store.forget(bob)
        store.replace(draft, metadata={"n": 2})
    again = copy_file(file, database_url)
    assert (again.items, again.erased, again.verified) == (1, 3, 45)
    assert str(again).endswith("; erased 3 that were forgotten in the file")
    shown = "SELECT id, superseded, near FROM memory ORDER BY id"
    assert rows(database_url, shown) == rows(file, shown)
    assert copy_file(file, database_url).erased == 0


@pytest.mark.rule("M-66")
def test_what_was_replaced_in_the_database_does_not_come_back(
    file: Path, database_url: str
) -> None:
    draft = MemoryDraft(title="Summary", content="sky", idempotency_key="rolling")
    with MemoryStore.open(file, embedder=None) as store:
        store.replace(draft, metadata={"n": 1})
    copy_file(file, database_url)
    with MemoryStore.open(database_url, embedder=None) as store:
        later = store.replace(draft, metadata={"n": 2})
    assert copy_file(file, database_url).forgotten == 1
    titled = "SELECT id FROM memory WHERE title = 'Summary'"
    assert rows(database_url, titled) == [(later.id,)]


@pytest.mark.rule("M-66")
def test_two_copies_at_once_store_the_audit_once(
    file: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_BATCH", 10)
    before = audited(file)
    copied = PostgresEngine.audit_copied
    barrier = threading.Barrier(2)

    def begin_together(self: PostgresEngine, source: str) -> int:
        found = copied(self, source)
        if not self._database.is_writing:
            barrier.wait(60)
        return found

    monkeypatch.setattr(PostgresEngine, "audit_copied", begin_together)
    with ThreadPoolExecutor(2) as threads:
        copies = [threads.submit(copy_file, file, database_url) for _ in range(2)]
        reports = [copy.result(60) for copy in copies]
    assert audited(database_url) == before
    assert sum(report.audit for report in reports) == len(before)


@pytest.mark.rule("M-66")
def test_an_interrupted_copy_is_continued(
    file: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_BATCH", 10)
    add, calls = PostgresEngine.add, 0

    def interrupted(self: PostgresEngine, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        add(self, *arguments)

    monkeypatch.setattr(PostgresEngine, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        copy_file(file, database_url)
    assert rows(database_url, "SELECT count(*) FROM memory") == [(20,)]
    monkeypatch.setattr(PostgresEngine, "add", add)
    report = copy_file(file, database_url)
    assert (report.items, report.verified) == (26, 46)


@pytest.mark.rule("M-66")
def test_a_difference_is_reported(file: Path, database_url: str) -> None:
    copy_file(file, database_url)
    rows(database_url, "UPDATE memory SET content = 'changed' WHERE title = 'N7'")
    with pytest.raises(MemoryStoreError, match="differs from the file"):
        copy_file(file, database_url)


def test_a_key_that_the_database_has_is_not_overwritten(file: Path, database_url: str) -> None:
    with MemoryStore.open(database_url, embedder=None) as store:
        bus = store.acting_as(POD, author="eve", origin="bus")
        bus.remember("Other", "grass", "note", idempotency_key="k")
    with pytest.raises(
        MemoryStoreError, match=r"another memory with the idempotency key .* Forget one of the two"
    ):
        copy_file(file, database_url)


def test_the_command_copies_and_says_what(
    file: Path, database_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["copy", str(file), database_url]) == 0
    assert "copied 46 items, 2 relations, 46 vectors" in capsys.readouterr().out
    with pytest.raises(MemoryStoreError, match="does not exist"):
        main(["copy", str(file.with_name("none.db")), database_url])


@pytest.mark.rule("M-66")
def test_relations_are_read_in_time_proportional_to_their_number(
    tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_BATCH", 10)

    def steps(number: int) -> int:
        """Copy a file; return how many hundred steps SQLite took to read its relations."""
        path = tmp_path / f"{number}.db"
        with MemoryStore.open(path, embedder=None) as store:
            first = store.remember("First", "sky").id
            store.remember_many(
                MemoryDraft(title=f"N{n}", content="sky", related_to=(first, f"supports:{first}"))
                for n in range(number)
            )
        counted = 0

        def count() -> None:
            nonlocal counted
            counted += 1

        def copy_relations(copy: Any) -> None:
            copy._source.raw.set_progress_handler(count, 100)
            copied(copy)
            copy._source.raw.set_progress_handler(None, 0)

        copied = copying._Copy._copy_relations
        with monkeypatch.context() as patch:
            patch.setattr(copying._Copy, "_copy_relations", copy_relations)
            assert copy_file(path, database_url).relations == 2 * number
        return counted

    assert steps(400) < 2.5 * steps(200)
