"""The PostgreSQL engine: migrations, faults, searches in large databases, and erasure."""

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from mcpp_agents.memory import (
    OWNER,
    MemoryDraft,
    MemoryStore,
    MemoryStoreError,
    Principal,
    StoreUnavailable,
)
from mcpp_agents.memory.access import view_of
from mcpp_agents.memory.commands import main
from mcpp_agents.memory.search.embedding_worker import EmbeddingWorker
from mcpp_agents.memory.search.terms import parse
from mcpp_agents.memory.storage.engine import Matches
from tests.agents.memory.conftest import ManualClock, audited, holds, prepare_older, rows
from tests.agents.memory.postgres_server import PostgresServer

psycopg = pytest.importorskip("psycopg")
np = pytest.importorskip("numpy")
pytest.importorskip("psycopg_pool")

from mcpp_agents.memory.storage.postgres import database, schema  # noqa: E402
from mcpp_agents.memory.storage.postgres.database import PostgresDatabase  # noqa: E402
from mcpp_agents.memory.storage.postgres.postgres import PostgresEngine  # noqa: E402
from mcpp_agents.memory.storage.postgres.word_search import PostingBudget  # noqa: E402

SECRET = "hunter2-8fK"


def open_store(url: str, **options: Any) -> MemoryStore:
    return MemoryStore(PostgresEngine(url, **options))


def names(store: MemoryStore, goal: str) -> list[str]:
    return [item.name for item in store.context(goal).items]


# Migrations


@pytest.fixture
def new_url(postgres: PostgresServer) -> str:
    """The address of a database without tables."""
    return postgres.new_database()


@pytest.mark.rule("M-60")
def test_processes_may_create_the_tables_at_the_same_time(new_url: str) -> None:
    barrier = threading.Barrier(4)

    def create(number: int) -> None:
        barrier.wait()
        with MemoryStore.open(new_url, embedder=None) as store:
            store.remember(f"Item {number}", "apple", "note")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(create, range(4)))
    with MemoryStore.open(new_url, embedder=None) as store:
        assert len(names(store, "apple")) == 4
    versions = rows(new_url, "SELECT version FROM migration ORDER BY version")
    assert [row[0] for row in versions] == list(schema.migrations())


@pytest.mark.rule("M-60")
def test_an_older_schema_is_migrated_and_a_failed_migration_changes_nothing(
    new_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = schema.migrations()
    prepare_older(new_url, 1)
    broken = {**steps, 99: "CREATE TABLE more (id integer); SELECT 1 / 0"}
    monkeypatch.setattr(schema, "migrations", lambda: broken)
    with pytest.raises(MemoryStoreError, match="division by zero"):
        MemoryStore.open(new_url, embedder=None)
    assert rows(new_url, "SELECT max(version), to_regclass('more') FROM migration") == [(1, None)]
    monkeypatch.undo()
    MemoryStore.open(new_url, embedder=None).close()
    assert rows(new_url, "SELECT max(version) FROM migration") == [(max(steps),)]


@pytest.mark.rule("M-02", "M-60")
def test_items_of_an_older_schema_get_an_account_and_the_size_of_their_domain(
    new_url: str,
) -> None:
    prepare_older(new_url, 8)
    for number, (principal, organization) in enumerate(
        [("ann", "local"), ("ann@home", "local"), ("ann", "acme")], start=1
    ):
        rows(
            new_url,
            f"INSERT INTO scope (name, organization) VALUES ('{number}', '{organization}');"
            "INSERT INTO memory (seq, id, scope, neighbourhood, kind, title, content, keys, near,"
            f" grams, created_at, since, principal, origin, more) SELECT {number}, '{number}', id,"
            f" '', 'note', '', '', '', '', '', 0, 0, '{principal}', 'direct', '{{}}'"
            f" FROM scope WHERE name = '{number}'",
        )
    rows(
        new_url,
        "UPDATE memory SET domain = 'd' WHERE seq = 3; INSERT INTO word_list"
        " SELECT seq, scope, 5, '{7}', '{}' FROM memory WHERE seq = 3",
    )
    MemoryStore.open(new_url, embedder=None).close()
    sizes = "SELECT scope, items, tokens, first, last FROM scope_domain"
    assert rows(new_url, sizes) == [(3, 1, 5, 3, 3)]
    accounts = rows(new_url, "SELECT principal FROM memory ORDER BY seq")
    assert accounts == [("ann",), ("ann@home@local",), ("ann@acme",)]


@pytest.mark.rule("M-60")
@pytest.mark.parametrize("role", ["memory", "writer"])
def test_a_newer_schema_is_refused_in_one_line(
    postgres: PostgresServer, new_url: str, role: str
) -> None:
    """Also to a role that may write, but not create or change tables."""
    MemoryStore.open(new_url, embedder=None).close()
    rows(new_url, "INSERT INTO migration (version) VALUES (4711)")
    postgres.add_writer(new_url)
    with pytest.raises(MemoryStoreError, match="has version 4711") as refused:
        MemoryStore.open(new_url.replace("memory@", f"{role}@"), embedder=None)
    assert "\n" not in str(refused.value)


@pytest.mark.rule("M-60", "M-61")
def test_a_start_waits_a_bounded_time_for_another_one(
    new_url: str,
) -> None:
    prepare_older(new_url, 1)
    with psycopg.connect(new_url) as other:
        other.execute("LOCK TABLE mcpp_memory.migration IN SHARE ROW EXCLUSIVE MODE")
        with pytest.raises(MemoryStoreError, match=r"holds a lock .* try again later"):
            PostgresEngine(new_url, statement_seconds=0.2)
    PostgresEngine(new_url).close()


@pytest.mark.rule("M-61")
def test_a_role_that_can_only_connect_cannot_stop_a_start(
    postgres: PostgresServer, new_url: str
) -> None:
    postgres.execute("DROP ROLE IF EXISTS stranger")
    postgres.execute("CREATE ROLE stranger LOGIN")
    with psycopg.connect(new_url.replace("memory@", "stranger@")) as other:
        other.execute("SELECT pg_advisory_lock(x'6D63707000000001'::bigint)")
        PostgresEngine(new_url, statement_seconds=5).close()
        assert rows(new_url, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(1,)]


def test_a_role_without_rights_is_refused_in_one_line(
    postgres: PostgresServer, new_url: str
) -> None:
    postgres.execute("DROP ROLE IF EXISTS stranger")
    postgres.execute("CREATE ROLE stranger LOGIN")
    url = new_url.replace("memory@", "stranger@")
    with pytest.raises(MemoryStoreError, match="may not use, create or migrate the") as refused:
        MemoryStore.open(url, embedder=None)
    assert "\n" not in str(refused.value)


@pytest.mark.rule("M-60")
def test_pgvector_may_be_in_any_schema_that_the_role_may_use(
    postgres: PostgresServer, new_url: str
) -> None:
    name = new_url.split("@/")[1].split("?")[0]
    postgres.execute('CREATE SCHEMA "Ex t"; ALTER EXTENSION vector SET SCHEMA "Ex t"', name)
    with pytest.raises(MemoryStoreError, match="may not use the schema that pgvector is in"):
        MemoryStore.open(new_url, embedder=None)
    postgres.execute('GRANT USAGE ON SCHEMA "Ex t" TO memory', name)
    with MemoryStore.open(new_url, embedder=Scattered()) as store:
        store.remember("Item", "apple", "note")
        store.embed_pending()
        assert "cosine" in store.context("Item apple").items[0].metadata


def test_a_superuser_is_warned(
    postgres: PostgresServer, new_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    MemoryStore.open(new_url.replace("memory@", "postgres@"), embedder=None).close()
    assert "row-level security does not apply" in caplog.text


# Faults


@pytest.mark.rule("M-40", "M-61")
def test_a_crash_of_the_server_loses_nothing_acknowledged_and_the_store_recovers(
    postgres: PostgresServer, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with open_store(database_url, statement_seconds=1) as store:
        store.remember("Before", "apple", "note")
        postgres.stop()
        with pytest.raises(StoreUnavailable, match="cannot be used now"):
            store.context("apple")
        postgres.start()
        assert names(store, "apple") == ["Before"]
        store.remember("After", "apple", "note")
        assert set(names(store, "apple")) == {"Before", "After"}
        tools = [entry.details.get("refused") for entry in store.audit_entries()]
    assert tools.count("StoreUnavailable") == 1  # written once the server was back (M-43)


@pytest.mark.rule("M-61")
def test_calls_that_wait_during_an_outage_go_on_when_the_server_is_back(
    postgres: PostgresServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_POOL_SECONDS", 30.0)  # a slow machine may need 10 to start it
    engine = PostgresEngine(database_url)
    with MemoryStore(engine) as store, ThreadPoolExecutor(12) as threads:
        store.remember("Before", "apple", "note")
        postgres.stop()
        packs = [threads.submit(names, store, "apple") for _ in range(12)]
        deadline = time.monotonic() + 20
        while engine._database._pool.get_stats().get("connections_errors", 0) < len(packs):
            assert time.monotonic() < deadline
        postgres.start()
        assert [pack.result(60) for pack in packs] == [["Before"]] * 12


@pytest.mark.rule("M-43", "M-61")
def test_a_call_during_an_outage_waits_once_and_the_outage_is_logged_once(
    postgres: PostgresServer,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(database, "_POOL_SECONDS", 4.0)
    with open_store(database_url) as store:
        store.remember("Before", "apple", "note")
        postgres.stop()
        try:
            for call in (lambda: names(store, "apple"), lambda: store.remember("No", "apple")):
                began = time.monotonic()
                with pytest.raises(StoreUnavailable, match="cannot be used now"):
                    call()
                assert time.monotonic() - began < 7  # with a wait for its audit entry: 8 seconds
        finally:
            postgres.start()
        assert names(store, "apple") == ["Before"]
        refused = [entry.details.get("refused") for entry in store.audit_entries()]
    assert refused.count("StoreUnavailable") == 2
    lines = [record.getMessage() for record in caplog.records if record.name == "mcpp.memory"]
    assert [line.partition(":")[0] for line in lines] == [
        "the database cannot be reached",
        "audit entries wait for the database",
        "the database is reached again",
    ]


@pytest.mark.rule("M-43")
def test_audit_entries_that_wait_are_written_before_that_of_the_next_write(
    database_url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_POOL_SECONDS", 1.0)
    with open_store(database_url) as store:
        store.remember("Before", "apple", "note")
        postgres.stop()
        try:
            for call in (store.context, store.forget):
                with pytest.raises(StoreUnavailable):
                    call("mem_1")
        finally:
            postgres.start()
        store.remember("After", "apple", "note")
    assert audited(database_url) == [
        ("remember", None),
        ("context", "StoreUnavailable"),
        ("forget", "StoreUnavailable"),
        ("remember", None),
    ]


@pytest.mark.rule("M-61")
def test_a_terminated_connection_is_replaced(postgres: PostgresServer, database_url: str) -> None:
    with open_store(database_url) as store:
        store.remember("Before", "apple", "note")
        postgres.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'mcpp memory'"
        )
        assert names(store, "apple") == ["Before"]


@pytest.mark.rule("M-61")
def test_many_terminated_connections_are_replaced_at_once(
    postgres: PostgresServer, database_url: str
) -> None:
    engine = PostgresEngine(database_url)
    together = threading.Barrier(10)

    def hold(_: int) -> None:
        with engine.reading():
            engine.quota_used("p", "a", 0.0)
            together.wait(60)

    with MemoryStore(engine) as store, ThreadPoolExecutor(10) as threads:
        list(threads.map(hold, range(10)))
        store.remember("Before", "apple", "note")
        [ended] = postgres.execute(
            "SELECT count(pg_terminate_backend(pid, 20000)) FROM pg_stat_activity"
            " WHERE application_name = 'mcpp memory'"
        )
        began = time.monotonic()
        assert names(store, "apple") == ["Before"]
        assert ended == (10,)
        assert time.monotonic() - began < 3  # with a pause after each of them: 6 seconds


@pytest.mark.rule("M-01", "M-61")
def test_a_write_whose_connection_is_lost_stores_nothing(
    postgres: PostgresServer, database_url: str
) -> None:
    engine = PostgresEngine(database_url)
    with MemoryStore(engine) as store:
        with pytest.raises(StoreUnavailable), engine.writing():  # noqa: PT012 - its end raises
            engine.charge_quota("p", "a", items=1, at=1.0, expired_at=0.0)
            postgres.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'mcpp memory' AND state = 'idle in transaction'"
            )
        assert engine.quota_used("p", "a", 0.0) == 0
        store.remember("After", "apple", "note")


@pytest.mark.rule("M-43", "M-61")
def test_a_write_waits_for_another_and_gives_up_with_advice(database_url: str) -> None:
    with open_store(database_url, statement_seconds=0.3) as store:
        store.remember("Before", "apple", "note")
        with psycopg.connect(database_url) as other:
            other.execute("SELECT FROM mcpp_memory.lock WHERE name = 'write' FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="busy; try again later"):
                store.remember("Blocked", "apple", "note")
            assert names(store, "apple") == ["Before"]  # a pack does not wait
        store.remember("After", "apple", "note")


WAITING = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE application_name = 'mcpp memory' AND wait_event_type = 'Lock'"
)


@pytest.mark.rule("M-61")
def test_writes_that_wait_leave_connections_to_reads(
    postgres: PostgresServer, database_url: str
) -> None:
    with (
        open_store(database_url, max_connections=4) as store,
        ThreadPoolExecutor(8) as threads,
    ):
        store.remember("Before", "apple", "note")
        with psycopg.connect(database_url) as other:
            other.execute("SELECT FROM mcpp_memory.lock WHERE name = 'write' FOR UPDATE")
            barrier = threading.Barrier(9)

            def write(number: int) -> None:
                barrier.wait()
                store.remember(f"Item {number}", "apple", "note")

            writes = [threads.submit(write, number) for number in range(8)]
            barrier.wait()
            deadline = time.monotonic() + 20
            while postgres.execute(WAITING) < [(2,)]:
                assert time.monotonic() < deadline
            for _ in range(20):
                assert names(store, "apple") == ["Before"]
            assert postgres.execute(WAITING) == [(2,)]
        for one in writes:
            one.result(60)
        assert len(names(store, "apple")) == 9


@pytest.mark.rule("M-43", "M-61")
def test_writes_that_wait_in_the_process_give_up_with_advice(database_url: str) -> None:
    def write(number: int) -> None:
        with pytest.raises(StoreUnavailable, match="busy; try again later"):
            store.remember(f"Item {number}", "apple", "note")

    with (
        open_store(database_url, statement_seconds=0.5) as store,
        ThreadPoolExecutor(8) as threads,
        psycopg.connect(database_url) as other,
    ):
        other.execute("SELECT FROM mcpp_memory.lock WHERE name = 'write' FOR UPDATE")
        list(threads.map(write, range(8)))


@pytest.mark.rule("M-61")
def test_writes_that_wait_in_the_process_fail_together_if_the_server_is_down(
    postgres: PostgresServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_POOL_SECONDS", 1.0)

    def write(number: int) -> float:
        began = time.monotonic()
        with pytest.raises(StoreUnavailable, match="cannot be used now"), engine.writing():
            pass
        return time.monotonic() - began

    engine = PostgresEngine(database_url)
    try:
        with ThreadPoolExecutor(12) as threads:
            postgres.stop()
            try:
                assert max(threads.map(write, range(12))) < 4  # one after another: 6 seconds
            finally:
                postgres.start()
    finally:
        engine.close()


@contextmanager
def over_tcp(url: str) -> Iterator[str]:
    """Forward TCP connections to the server's Unix socket; yield the address for one of them."""
    folder = url.split("host=")[1]

    def forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):  # one side has reset its connection: the other one has to learn it
            while data := source.recv(65_536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def accept() -> None:
        # A socket is closed only when no thread reads from it: closing does not wake one that does.
        with ExitStack() as opened, ThreadPoolExecutor(16) as pool:
            while True:
                try:
                    client = opened.enter_context(listener.accept()[0])
                except OSError:  # the listener was shut down
                    return
                server = opened.enter_context(socket.socket(socket.AF_UNIX))
                server.connect(f"{folder}/.s.PGSQL.5432")
                pool.submit(forward, client, server)
                pool.submit(forward, server, client)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        pool.submit(accept)
        port = listener.getsockname()[1]
        try:
            yield url.replace("@/", f"@127.0.0.1:{port}/").replace(f"?host={folder}", "")
        finally:
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.rule("M-61")
@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="needs Linux")
@pytest.mark.parametrize(("option", "seconds"), [("", 30), ("?tcp_user_timeout=5000", 5)])
def test_a_server_that_vanishes_from_the_network_is_given_up(
    database_url: str, option: str, seconds: int
) -> None:
    """By the kernel: what is sent is not received, or nothing comes from the server."""
    MemoryStore.open(database_url, embedder=None).close()
    tcp = socket.IPPROTO_TCP
    with (
        over_tcp(database_url) as url,
        closing(PostgresDatabase(url + option)) as opened,
        opened.reading(),
        socket.socket(fileno=os.dup(opened._begun.fileno())) as connection,
    ):
        assert connection.getsockopt(tcp, socket.TCP_USER_TIMEOUT) == seconds * 1000
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        probes = connection.getsockopt(tcp, socket.TCP_KEEPCNT)
        interval = connection.getsockopt(tcp, socket.TCP_KEEPINTVL)
        assert connection.getsockopt(tcp, socket.TCP_KEEPIDLE) + probes * interval == 30


@pytest.mark.rule("M-61")
def test_a_long_statement_is_ended(database_url: str) -> None:
    engine = PostgresEngine(database_url, statement_seconds=0.2)
    database: PostgresDatabase = engine._database
    with pytest.raises(StoreUnavailable, match="busy"), database.reading():
        database.all("SELECT pg_sleep(60)")
    engine.close()


@pytest.mark.rule("M-61")
def test_more_callers_than_connections_take_turns(database_url: str) -> None:
    with open_store(database_url, max_connections=2) as store, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.remember(f"Item {n}", "apple", "note"), range(16)))
        found = list(pool.map(lambda _: len(names(store, "apple")), range(16)))
    assert found == [16] * 16


def test_one_key_stores_once_whoever_comes_first(database_url: str) -> None:
    with open_store(database_url) as store, ThreadPoolExecutor(4) as pool:
        answers = pool.map(
            lambda _: store.remember("One", "apple", "note", idempotency_key="k"), range(8)
        )
        assert sum(answer.created for answer in answers) == 1
        assert names(store, "apple") == ["One"]


# The command line


def test_a_file_that_is_named_goes_before_the_variable(
    database_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MCPP_MEMORY_DATABASE", database_url)
    main(["remember", "Rotation", "tokens rotate"])
    assert rows(database_url, "SELECT title FROM memory") == [("Rotation",)]
    file = str(tmp_path / "memory.db")
    main(["remember", "Other", "tokens rotate", "--file", file])
    assert rows(file, "SELECT title FROM memory") == [("Other",)]
    monkeypatch.setenv("MCPP_MEMORY_DATABASE", f"mysql://ann:{SECRET}@localhost")
    with pytest.raises(SystemExit):
        main(["audit"])
    assert SECRET not in capsys.readouterr().err


# Passwords


@pytest.mark.rule("M-62")
@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@127.0.0.1:1/none?connect_timeout=2",
        f"postgresql://ann:a/{SECRET}@localhost/none",
        f"postgresql://ann:a@{SECRET}@localhost/none",
        f"postgresql://ann:a?{SECRET}@localhost/none",
        f"postgresql://ann:%zz{SECRET}@localhost/none",
        f"postgresql://ann:{SECRET}@[::1/none",
        f"postgresql://ann@localhost/none?password={SECRET}&nonsense=1",
        f"mysql://ann:{SECRET}@localhost/none",
    ],
)
def test_a_password_is_never_shown(
    url: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    try:
        code = main(["audit", "--database", url])
    except (MemoryStoreError, SystemExit) as error:
        code = 1
        assert SECRET not in f"{error} {error.__cause__} {error!r}"
    assert code != 0
    output = capsys.readouterr()
    assert SECRET not in output.out + output.err + caplog.text


@pytest.mark.rule("M-62")
def test_a_wrong_password_is_not_in_the_log(
    postgres: PostgresServer, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = database_url.replace("memory@", f"memory:{SECRET}@")
    with open_store(url, statement_seconds=0.5) as store:
        postgres.stop()
        with pytest.raises(StoreUnavailable) as refused:
            store.context("apple")
        postgres.start()
    assert SECRET not in f"{refused.value} {refused.value.__cause__!r} {caplog.text}"
    assert SECRET not in repr(vars(store._engine))


# Erasure


def domain_sizes(url: str, *, counted: bool) -> list[Any]:
    """Return the sizes of domains as they are kept, or counted anew."""
    if not counted:
        return rows(
            url, "SELECT scope, domain, items, tokens, first, last FROM scope_domain ORDER BY 1, 2"
        )
    return rows(
        url,
        "SELECT m.scope, domain, count(*), sum(length), min(seq), max(seq)"
        " FROM memory m JOIN word_list USING (seq) WHERE domain IS NOT NULL GROUP BY 1, 2"
        " ORDER BY 1, 2",
    )


def sizes(url: str) -> list[Any]:
    return rows(
        url,
        "SELECT s.items, s.tokens, count(w.seq), coalesce(sum(w.length), 0),"
        " (SELECT count(*) FROM posting p WHERE p.scope = s.id)"
        " - coalesce(sum(cardinality(w.words)), 0)"
        " FROM scope s LEFT JOIN word_list w ON w.scope = s.id GROUP BY s.id",
    )


@pytest.mark.rule("M-07", "M-63")
def test_forgetting_leaves_nothing_in_any_table(database_url: str) -> None:
    with open_store(database_url) as store:
        store.remember("Ann", "Is it Friday?", "message", source="D1:1")
        answer = store.remember("Bob", "yes, zebra", "message", source="D1:2", tags=["zebra"])
        old = store.remember("Old", "quagga", "note")
        new = store.remember("New", "zebra", "note", related_to=[f"supersedes:{old.id}"])
        assert holds(database_url, "zebra")
        store.forget(answer.id)
        store.forget(new.id)
        assert not holds(database_url, "zebra")
        assert names(store, "zebra") == []
        assert names(store, "quagga") == ["Old"]
    for items, tokens, listed, length, unlisted in sizes(database_url):
        assert (items, tokens, unlisted) == (listed, length, 0)


def test_the_counts_of_a_scope_follow_every_change(database_url: str) -> None:
    chance = random.Random(3)
    with open_store(database_url) as store:
        ids: list[str] = []
        for number in range(30):
            if ids and chance.random() < 0.3:
                store.forget(ids.pop(chance.randrange(len(ids))))
            else:
                related = [f"supersedes:{chance.choice(ids)}"] if ids and number % 5 == 0 else []
                source = chance.choice([None, "D1:1", "D2:1"])
                stored = store.remember(
                    f"T{number}",
                    f"apple {number}",
                    "message",
                    source=source,
                    related_to=related,
                    domain=chance.choice([None, "A", "b"]),
                )
                ids.append(stored.id)
            kept, counted = (domain_sizes(database_url, counted=one) for one in (False, True))
            assert kept == counted
        assert len(kept) == 2
        for items, tokens, listed, length, unlisted in sizes(database_url):
            assert (items, tokens, unlisted) == (listed, length, 0)
        for id in ids:
            store.forget(id)
        assert domain_sizes(database_url, counted=False) == []


# Searches with tiny budgets, as in a very large database

SMALL = PostingBudget(scored=4, counted=6, sampled=10, min_sample=2, joined=200)


@pytest.fixture
def small(database_url: str, clock: ManualClock) -> Iterator[tuple[MemoryStore, PostgresEngine]]:
    engine = PostgresEngine(database_url, budget=SMALL)
    with MemoryStore(engine, clock=clock) as store:
        yield store, engine


def found(engine: PostgresEngine, goal: str, principal: Principal = OWNER) -> Matches:
    return engine.match(parse(goal), view_of(principal), 4)


def test_an_old_item_with_all_common_words_is_found(
    small: tuple[MemoryStore, PostgresEngine],
) -> None:
    store, engine = small
    store.remember("Both", "wing flow", "note")
    store.remember_many(
        MemoryDraft(title=str(n), content="the wing" if n % 2 else "the flow", kind="note")
        for n in range(60)
    )
    matches = found(engine, "wing flow")
    assert next(iter(matches.words)) == 1
    assert [(match.pair.shown, match.seqs) for match in matches.pairs] == [("wing flow", {1})]


def test_for_a_common_word_the_newest_visible_items_are_found(
    small: tuple[MemoryStore, PostgresEngine],
) -> None:
    store, engine = small
    ann = store.acting_as(Principal("ann"))
    ann.remember_many(MemoryDraft(title="Mine", content="a flow", kind="note") for _ in range(8))
    store.remember_many(MemoryDraft(title="Flow", content="flow", kind="note") for _ in range(60))
    assert list(found(engine, "flow", Principal("ann")).words) == [8, 7, 6, 5]
    assert min(found(engine, "flow").words) > 50


def test_a_word_too_common_to_select_items_is_scored_among_those_selected(
    database_url: str,
) -> None:
    engine = PostgresEngine(database_url, budget=replace(SMALL, newest=0, joined=0))
    with MemoryStore(engine) as store:
        store.remember_many(
            MemoryDraft(title=str(n), content="wing" if n % 3 else "the flow", kind="note")
            for n in range(60)
        )
        both = store.remember("Both", "flow and wing", "note")
        matches = found(engine, "flow wing")
        [seq] = [item.seq for item in engine.find([both.id], None).values()]
    assert next(iter(matches.words)) == seq
    assert matches.holders["wing"] == {seq}
    assert matches.holders["flow"] == matches.words.keys()


def test_a_rare_word_is_scored_with_the_common_words_around_it(
    small: tuple[MemoryStore, PostgresEngine],
) -> None:
    store, engine = small
    store.remember("Old", "ogive flow", "note")
    store.remember_many(MemoryDraft(title=str(n), content="a flow", kind="note") for n in range(60))
    matches = found(engine, "ogive flow")
    assert next(iter(matches.words)) == 1
    assert 1 in matches.holders["flow"]
    assert matches.rarity["ogive"] > matches.rarity["flow"]


# Views of many scopes


def postings_read(url: str) -> int:
    """Return how many entries of the index of words were read so far."""
    sql = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'posting_pkey'"
    return int(rows(url, sql)[0][0])


@pytest.mark.rule("M-64")
def test_a_view_of_many_projects_reads_only_the_postings_of_the_words_of_its_goal(
    postgres: PostgresServer, database_url: str
) -> None:
    with open_store(database_url) as store:
        store.remember_many(
            MemoryDraft(
                title="x", content=" ".join(f"w{n * 20 + i}" for i in range(20)), project=f"p{n}"
            )
            for n in range(1_000)
        )
    postgres.execute("ANALYZE", database_url.split("@/")[1].split("?")[0])  # plans depend on it
    before = postings_read(database_url)
    with open_store(database_url) as store:
        assert len(names(store, "w1 w500 w1111 w19000")) == 4
    deadline = time.monotonic() + 20  # the server counts the reads of a connection after its end
    while (read := postings_read(database_url) - before) == 0:
        assert time.monotonic() < deadline
    assert read < 200  # of 21,000


def test_the_first_and_last_numbers_of_a_scope_follow_every_change(database_url: str) -> None:
    chance = random.Random(4)
    with open_store(database_url) as store:
        ids: list[str] = []
        for number in range(30):
            if ids and chance.random() < 0.5:
                store.forget(ids.pop(chance.choice([0, -1])))
            else:
                related = [f"supersedes:{ids[0]}"] if ids and number % 4 == 0 else []
                ids.append(store.remember("x", "apple", related_to=related).id)
            [(bounds,)] = rows(database_url, "SELECT (first, last) FROM scope")
            current = "SELECT (min(seq), max(seq)) FROM memory WHERE superseded = 0"
            assert rows(database_url, current) == [(bounds,)]


# Vectors


class Scattered:
    """An embedder whose vectors are random, but the same for the same text."""

    model = "scattered"
    lexical_share = 0.6

    def embed(self, texts: Any) -> Any:
        drawn = np.stack(
            [np.random.default_rng(crc32(text.encode())).standard_normal(24) for text in texts]
        ).astype(np.float32)
        return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def recall(url: str, principal: Principal, *, exact_items: int) -> float:
    """Return how many of the nearest 20 of a view are found, compared with an exact search."""
    hits = total = 0
    engines = [PostgresEngine(url, exact_items=most) for most in (10**9, exact_items)]
    for vector in Scattered().embed([f"goal {number}" for number in range(10)]):
        exact, found = (
            engine.nearest("scattered", vector.tobytes(), view_of(principal), limit=20, also=())
            for engine in engines
        )
        hits += len(exact.keys() & found.keys())
        total += len(exact)
    for engine in engines:
        engine.close()
    assert total == 200
    return hits / total


@pytest.mark.rule("M-64")
def test_the_vector_index_finds_nearly_what_an_exact_search_finds(database_url: str) -> None:
    words = [f"{a}{b}" for a in range(60) for b in "abcdefgh"]
    with MemoryStore.open(database_url, embedder=Scattered()) as store:
        store.remember_many(
            MemoryDraft(title=word, content=f"{word} x", project="web" if n % 5 else None)
            for n, word in enumerate(words)
        )
        store.embed_pending()
    assert recall(database_url, Principal("ann", frozenset({"web"})), exact_items=0) >= 0.95


@pytest.mark.rule("M-64")
def test_a_large_scope_gets_a_vector_index_by_which_it_is_searched(database_url: str) -> None:
    engine = PostgresEngine(database_url, exact_items=100)
    ann = Principal("ann", frozenset({"web"}))
    with MemoryStore(engine, background=EmbeddingWorker(engine, Scattered())) as store:
        store.remember_many(
            MemoryDraft(title="x", content="x" * n, project="web" if n % 3 else f"p{n % 4}")
            for n in range(1, 241)
        )
        store.embed_pending()
        assert own_indexes(database_url) == {}  # it is most of the database
        store.remember_many(
            MemoryDraft(title="x", content="x" * n, project=f"p{n % 5}") for n in range(241, 481)
        )
        store.acting_as(ann).remember("Mine", "private")
        store.remember("Another", "of the large project", project="web")
        store.embed_pending()
        assert own_indexes(database_url).keys() == {"web"}
    # So few vectors would be sorted rather than looked up in an index.
    unsorted = f"{database_url}&options=-cenable_sort%3Doff"
    assert recall(unsorted, ann, exact_items=100) >= 0.95
    deadline = time.monotonic() + 20  # the server counts the scans of a connection after its end
    while not own_indexes(database_url)["web"]:
        assert time.monotonic() < deadline


def own_indexes(url: str) -> dict[str, int]:
    """Return the projects with an index of their own, and how often these were used."""
    return dict(
        rows(
            url,
            "SELECT s.project, i.idx_scan FROM pg_stat_user_indexes i JOIN scope s"
            " ON i.indexrelname = 'embedding_hnsw_' || (SELECT max(id) FROM model) || '_' || s.id",
        )
    )


@pytest.mark.rule("M-64")
def test_both_engines_rank_alike(database_url: str, tmp_path: Any) -> None:
    chance = random.Random(5)
    vocabulary = [f"word{number}" for number in range(80)]

    def text(count: int) -> str:
        return " ".join(chance.choices(vocabulary, range(1, 81), k=count))

    drafts = [
        MemoryDraft(
            title=text(4),
            content=text(chance.randint(3, 20 if number < 40 else 60)),
            kind=chance.choice(["note", "decision", "message"]),
            source=chance.choice([None, "D1:3", "https://example.org/a#b"]),
            domain="Dom" if number < 40 else None,  # these are shorter
            idempotency_key=str(number),
        )
        for number in range(150)
    ]
    goals = [text(5) for _ in range(20)]
    fields_of_searches: list[Any] = [{}, {"domain": "dom"}]
    results = []
    for location in (tmp_path / "memory.db", database_url):
        with MemoryStore.open(
            location,
            embedder=Scattered(),
            clock=ManualClock(),
        ) as store:
            numbers = {stored.id: n for n, stored in enumerate(store.remember_many(drafts))}
            store.embed_pending()
            results.append(
                [
                    {numbers[id]: points for id, points in store.search(goal, limit=20, **fields)}
                    for goal in goals
                    for fields in fields_of_searches
                ]
            )
    for in_file, in_database in zip(*results, strict=True):
        assert list(in_file) == list(in_database)
        assert list(in_file.values()) == pytest.approx(list(in_database.values()), abs=1e-4)
