"""Row-level security on PostgreSQL, seen by other roles and by hostile inputs."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mcpp_agents.memory import MemoryDraft, MemoryStore, Principal, UnknownMemory
from tests.agents.memory.conftest import prepare_older, rows
from tests.agents.memory.postgres_server import PostgresServer

psycopg = pytest.importorskip("psycopg")
pytest.importorskip("psycopg_pool")

from mcpp_agents.memory.storage.postgres.reach import Reach  # noqa: E402

DOCS = Path(__file__).parents[4] / "docs" / "memory.md"
[GRANTS] = re.findall(r"```sql\n(.*?)```", DOCS.read_text(), re.DOTALL)

ALICE = Principal("alice", frozenset({"web", "api"}), "acme")
BOB = Principal("bob", frozenset({"web"}), "other")
TABLES = (
    "scope",
    "scope_domain",
    "memory",
    "word_list",
    "posting",
    "relation",
    "audit",
    "quota",
    "opt_out",
)
HOSTILE = (
    "'; DROP TABLE memory; --",
    '"; DROP TABLE memory; --',
    "x' OR '1'='1",
    "%s %(a)s %% ? $1 :name",
    "{1,2,3}",
    "\\'; SELECT pg_sleep(60); --",
    "all",
    "NULL",
    "a:* & !b | (c <-> d)",
    "\u202e\U0001f600 %",
)


@pytest.fixture
def filled(database_url: str) -> Iterator[MemoryStore]:
    with MemoryStore.open(database_url, embedder=None) as store:
        alice, bob = store.acting_as(ALICE), store.acting_as(BOB)
        alice.remember("acme private", "apple", "note")
        web = alice.remember("acme web", "apple", "note", project="web")
        alice.remember("acme api", "apple", "note", project="api", related_to=[web.id])
        bob.remember("other web", "apple", "note", project="web")
        bob.remember("other private", "apple", "note")
        yield store


def titles(connection: Any) -> set[str]:
    return {row[0] for row in connection.execute("SELECT title FROM memory")}


def connect(url: str, role: str = "memory") -> Any:
    options = "-c search_path=mcpp_memory,public"
    url = url.replace("memory@", f"{role}@")
    return psycopg.connect(url, autocommit=True, options=options)


def grant_as_documented(postgres: PostgresServer, url: str) -> str:
    """Let a role `reports` read project `web` of `local`; return the address with that role."""
    if not postgres.execute("SELECT 1 FROM pg_roles WHERE rolname = 'reports'"):
        postgres.execute("CREATE ROLE reports LOGIN")
    postgres.execute(GRANTS, url.split("@/")[1].split("?")[0])
    return url.replace("memory@", "reports@")


def names(store: MemoryStore, goal: str = "apple", **fields: Any) -> set[str]:
    return {item.name for item in store.context(goal, **fields).items}


@pytest.mark.rule("M-65")
def test_without_a_setting_even_the_owner_of_the_tables_sees_nothing(
    filled: MemoryStore, database_url: str
) -> None:
    with connect(database_url) as connection:
        for table in TABLES:
            assert connection.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="row-level security"):
            connection.execute(
                "INSERT INTO quota (principal, author, at, items) VALUES ('a', 'b', 1, 1)"
            )


@pytest.mark.rule("M-65")
@pytest.mark.parametrize(
    "setting", ["", "{}", "{0}", "ALL", "all ", "{1} OR true", "'{1}'", "all'; --", "{999999}"]
)
def test_no_other_setting_shows_anything(
    filled: MemoryStore, database_url: str, setting: str
) -> None:
    with connect(database_url) as connection:
        connection.execute("SELECT set_config('mcpp.scopes', %s, false)", [setting])
        with suppress(psycopg.DataError):  # not an array of numbers
            assert titles(connection) == set()


@pytest.mark.rule("M-64", "M-65")
@pytest.mark.parametrize(
    "table", ["scope", "scope_domain", "memory", "word_list", "posting", "embedding"]
)
def test_a_scope_is_looked_up_in_a_hash_table(database_url: str, table: str) -> None:
    """A view may have thousands of scopes: each row is not compared with all of them."""
    MemoryStore.open(database_url, embedder=None).close()
    with connect(database_url) as connection:
        plan = connection.execute(f"EXPLAIN SELECT FROM {table}").fetchall()
    assert "hashed SubPlan" in "\n".join(line for (line,) in plan)


@pytest.mark.rule("M-64")
def test_a_condition_on_the_scopes_of_items_looks_them_up_in_a_hash_table(
    filled: MemoryStore, database_url: str
) -> None:
    reach = Reach({1: 1}, "web", visible=1, tokens=1, first=1, last=1)
    where, values = reach.condition("m")
    sql = f"SELECT FROM memory m WHERE seq = 1{where}".replace("?", "%s")
    with psycopg.connect(database_url.replace("memory@", "postgres@")) as connection:  # no policies
        connection.execute("SET search_path = mcpp_memory")
        cursor = psycopg.ClientCursor(connection)
        plan = cursor.execute(f"EXPLAIN {sql}", values).fetchall()
    assert "hashed SubPlan" in "\n".join(line for (line,) in plan)


@pytest.mark.rule("M-65")
def test_a_transaction_sees_the_scopes_of_its_view_only(
    filled: MemoryStore, database_url: str
) -> None:
    [(scope,)] = rows(
        database_url, "SELECT id FROM scope WHERE organization = 'acme' AND project = 'web'"
    )
    with connect(database_url) as connection:
        connection.execute("SELECT set_config('mcpp.scopes', %s, false)", [f"{{{scope}}}"])
        assert titles(connection) == {"acme web"}
        assert connection.execute("SELECT DISTINCT scope FROM posting").fetchall() == [(scope,)]
        assert connection.execute("SELECT count(*) FROM relation").fetchone() == (0,)
        assert connection.execute("SELECT count(*) FROM audit").fetchone() == (0,)


@pytest.mark.rule("M-12", "M-65")
def test_a_query_that_lost_its_condition_still_sees_its_view_only(
    filled: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything: tuple[str, list[Any]] = (" AND true", [])
    monkeypatch.setattr(Reach, "condition", lambda self, table, by_scope=False: everything)
    monkeypatch.setattr(Reach, "posting_condition", lambda self: everything)
    assert names(filled.acting_as(ALICE)) == {"acme private", "acme web", "acme api"}
    assert names(filled.acting_as(BOB)) == {"other private", "other web"}


@pytest.mark.rule("M-65")
def test_a_listed_role_sees_its_projects_whatever_it_sets(
    postgres: PostgresServer, filled: MemoryStore, database_url: str
) -> None:
    postgres.add_reader(database_url)
    with connect(database_url, "reader") as reader:
        assert titles(reader) == set()
        rows(
            database_url,
            "INSERT INTO role_access (role, organization, project)"
            " VALUES ('reader', 'acme', 'web')",
        )
        for setting in ("", "all", "{1,2,3,4,5,6,7,8,9}"):
            reader.execute("SELECT set_config('mcpp.scopes', %s, false)", [setting])
            assert titles(reader) == {"acme web"}
            scopes = reader.execute("SELECT organization, project FROM scope").fetchall()
            assert scopes == [("acme", "web")]
            for table in ("relation", "audit", "quota", "opt_out"):
                assert reader.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)
        for statement in (
            "INSERT INTO role_access (role, organization) VALUES ('reader', 'other')",
            "DELETE FROM role_access",
            "DELETE FROM memory",
            "ALTER TABLE memory DISABLE ROW LEVEL SECURITY",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(statement)
        rows(database_url, "UPDATE role_access SET project = NULL")
        assert titles(reader) == {"acme web", "acme api"}  # all projects, but nothing private


@pytest.mark.rule("M-65")
def test_a_role_whose_access_is_withdrawn_sees_nothing_whatever_it_sets(
    postgres: PostgresServer, filled: MemoryStore, database_url: str
) -> None:
    postgres.add_reader(database_url)
    rows(
        database_url,
        "INSERT INTO role_access (role, organization) VALUES ('reader', 'acme')",
    )
    with connect(database_url, "reader") as reader:
        assert titles(reader) == {"acme web", "acme api"}
        rows(database_url, "DELETE FROM role_access")
        for setting in ("", "all", "{1,2,3,4,5,6,7,8,9}"):
            reader.execute("SELECT set_config('mcpp.scopes', %s, false)", [setting])
            for table in TABLES:
                assert reader.execute(f"SELECT count(*) FROM {table}").fetchone() == (0,)


@pytest.mark.rule("M-65")
def test_a_member_of_a_listed_group_sees_the_projects_of_the_group(
    postgres: PostgresServer, filled: MemoryStore, database_url: str
) -> None:
    postgres.add_reader(database_url)
    if not postgres.execute("SELECT 1 FROM pg_roles WHERE rolname = 'member'"):
        postgres.execute("CREATE ROLE member LOGIN IN ROLE reader")
    rows(
        database_url,
        "INSERT INTO role_access (role, organization, project) VALUES"
        " ('reader', 'acme', 'web'), ('gone', 'other', NULL)",
    )
    with connect(database_url, "member") as member:
        for setting in ("", "all", "{1,2,3,4,5,6,7,8,9}"):
            member.execute("SELECT set_config('mcpp.scopes', %s, false)", [setting])
            assert titles(member) == {"acme web"}
            assert member.execute("SELECT count(*) FROM audit").fetchone() == (0,)


@pytest.mark.rule("M-65")
def test_another_role_that_may_write_acts_as_memory(
    postgres: PostgresServer, filled: MemoryStore, database_url: str
) -> None:
    postgres.add_writer(database_url)
    with MemoryStore.open(database_url.replace("memory@", "writer@"), embedder=None) as store:
        store.acting_as(BOB).remember("more", "apple", "note")
        assert names(store.acting_as(BOB)) == {"other private", "other web", "more"}


@pytest.mark.rule("M-65")
def test_a_role_sees_of_the_list_and_of_the_other_tables_only_what_is_its_own(
    postgres: PostgresServer, filled: MemoryStore, database_url: str
) -> None:
    postgres.add_reader(database_url)
    rows(
        database_url,
        "INSERT INTO role_access (role, organization, project) VALUES"
        " ('reader', 'acme', 'web'), ('memory', 'secret', NULL), ('gone', 'other', 'api')",
    )
    rows(database_url, "INSERT INTO copied (source, last_audit) VALUES ('digest', 7)")
    listed = "SELECT role, organization, project FROM role_access ORDER BY role"
    with connect(database_url, "reader") as reader:
        for setting in ("", "all"):
            reader.execute("SELECT set_config('mcpp.scopes', %s, false)", [setting])
            assert reader.execute(listed).fetchall() == [("reader", "acme", "web")]
            assert titles(reader) == {"acme web"}
            tables = reader.execute(
                "SELECT tablename FROM pg_tables WHERE schemaname = 'mcpp_memory'"
            ).fetchall()
            shown = {
                table
                for [table] in tables
                if reader.execute(f"SELECT count(*) FROM {table}").fetchone() != (0,)
            }
            items = {"scope", "memory", "word_list", "posting"}  # of its project
            assert shown == items | {"role_access", "lock", "migration"}
    with connect(database_url) as owner:
        assert len(owner.execute(listed).fetchall()) == 3


@pytest.mark.rule("M-61")
def test_a_role_that_may_only_read_cannot_stop_writes(
    postgres: PostgresServer, filled: MemoryStore, database_url: str
) -> None:
    postgres.add_reader(database_url)
    with connect(database_url, "reader") as reader, reader.transaction():
        for statement in (
            "SELECT FROM lock FOR UPDATE",
            "SELECT FROM lock FOR KEY SHARE",
            "LOCK TABLE lock IN ROW SHARE MODE",
            "LOCK TABLE lock IN EXCLUSIVE MODE",
        ):
            with (
                pytest.raises(psycopg.errors.InsufficientPrivilege),
                reader.transaction(),  # a savepoint
            ):
                reader.execute(statement)
        reader.execute("LOCK TABLE lock IN ACCESS SHARE MODE")
        filled.remember("more", "apple", "note")
        # Locks that need no privilege: a write holds none of them.
        with filled._engine.writing():
            held = postgres.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            assert held == [(0,)]


@pytest.mark.rule("M-60")
def test_a_role_that_could_write_to_an_older_schema_still_can(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    prepare_older(url, 4)
    postgres.add_writer(url)
    MemoryStore.open(url, embedder=None).close()
    with MemoryStore.open(url.replace("memory@", "writer@"), embedder=None) as store:
        store.remember("more", "apple", "note")
        assert names(store) == {"more"}


@pytest.mark.rule("M-27", "M-65")
@pytest.mark.parametrize("text", HOSTILE)
def test_text_that_looks_like_sql_is_text(
    filled: MemoryStore, database_url: str, text: str
) -> None:
    eve = filled.acting_as(Principal(text, frozenset({text}), text))
    stored = eve.remember(
        text, f"{text} zebra", "note", project=text, domain=text, source=text,
        idempotency_key=text, tags=[text], metadata={"m": text},
    )  # fmt: skip
    eve.remember(text, "diary zebra", "note", agent_id=text)
    [item] = eve.context(f"{text} zebra", project=text, domain=text, limit=5).items
    assert (item.id, item.name, item.content) == (stored.id, text, f"{text} zebra")
    eve.opt_out({text})
    assert eve.opted_out() == {text}
    assert names(eve, "apple") == set()
    with pytest.raises(UnknownMemory):
        filled.acting_as(BOB).forget(stored.id)
    with pytest.raises(UnknownMemory):
        eve.forget(text)
    eve.forget(stored.id)
    assert names(filled.acting_as(BOB)) == {"other private", "other web"}


@pytest.mark.parametrize("id", ["\0", "mem_\0", "\ud800"])
def test_an_id_that_is_no_text_is_unknown(filled: MemoryStore, id: str) -> None:
    with pytest.raises(UnknownMemory):
        filled.forget(id)


@pytest.mark.rule("M-65")
@pytest.mark.parametrize("search_path", ["public", "pg_temp, mcpp_memory", "mcpp_memory, pg_temp"])
def test_a_listed_role_cannot_replace_the_list_by_a_table_of_its_own(
    postgres: PostgresServer, filled: MemoryStore, database_url: str, search_path: str
) -> None:
    postgres.add_reader(database_url)
    access = (
        "INSERT INTO role_access (role, organization, project) VALUES ('reader', 'acme', 'web')"
    )
    rows(database_url, access)
    with connect(database_url, "reader") as reader:
        reader.execute(f"SET search_path = {search_path}")
        reader.execute("SELECT set_config('mcpp.scopes', 'all', false)")
        shown = "SELECT title FROM mcpp_memory.memory"
        assert reader.execute(shown).fetchall() == [("acme web",)]
        reader.execute("CREATE TEMPORARY TABLE role_access (role name, organization text)")
        reader.execute("CREATE TEMPORARY TABLE scope (id integer)")
        reader.execute("INSERT INTO pg_temp.scope SELECT generate_series(1, 1000)")
        assert reader.execute(shown).fetchall() == [("acme web",)]
        for table in ("audit", "quota", "opt_out"):
            query = f"SELECT count(*) FROM mcpp_memory.{table}"
            assert reader.execute(query).fetchone() == (0,)


@pytest.mark.rule("M-65")
def test_with_the_documented_rights_a_role_reads_its_items_and_no_words(
    postgres: PostgresServer, database_url: str
) -> None:
    with MemoryStore.open(database_url, embedder=None) as store:
        store.remember("shown", "apple", "note", project="web")
        store.remember("hidden", "salary", "note")
    url = grant_as_documented(postgres, database_url)
    with psycopg.connect(url, autocommit=True) as reader:
        items = "mcpp_memory.memory m JOIN mcpp_memory.scope s ON s.id = m.scope"
        shown = reader.execute(f"SELECT title, organization, project FROM {items}").fetchall()
        assert shown == [("shown", "local", "web")]
        for statement in (
            "SELECT FROM mcpp_memory.posting WHERE word = 1",
            "SELECT FROM mcpp_memory.word_list",
            "SELECT FROM mcpp_memory.embedding",
            "SELECT FROM mcpp_memory.audit",
            "SELECT FROM mcpp_memory.scope WHERE name > 'a'",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(f"EXPLAIN {statement}")


@pytest.mark.rule("M-65")
def test_plans_and_estimates_tell_nothing_about_hidden_texts(
    postgres: PostgresServer, database_url: str
) -> None:
    """The policy is applied before a condition on a text, and no text is in the statistics."""
    with MemoryStore.open(database_url, embedder=None) as store:
        store.remember_many(
            MemoryDraft(title=f"Salary {n}", content=f"It is {n}") for n in range(300)
        )
    postgres.execute("ANALYZE", database_url.split("@/")[1].split("?")[0])
    with psycopg.connect(grant_as_documented(postgres, database_url), autocommit=True) as reader:
        for column in ("title", "content", "keys", "near", "grams", "more"):
            plans = [
                "\n".join(
                    line
                    for [line] in reader.execute(
                        f"EXPLAIN SELECT FROM mcpp_memory.memory WHERE {column} < '{text}'"
                    )
                )
                for text in ("A", "It is 2", "Salary 2", "z")
            ]
            for plan in plans:
                assert 0 < plan.index("SubPlan") < plan.index(f"({column} <")
            rows_expected = {re.findall(r"rows=\d+", plan)[0] for plan in plans}
            assert len(rows_expected) == 1


@pytest.mark.rule("M-60", "M-65")
def test_a_role_that_could_read_all_tables_of_an_older_schema_loses_those_of_words(
    postgres: PostgresServer,
) -> None:
    url = postgres.new_database()
    prepare_older(url, 10)
    postgres.add_reader(url)
    postgres.add_writer(url)
    with connect(url, "reader") as reader:
        assert reader.execute("SELECT FROM posting").fetchall() == []
        with MemoryStore.open(url, embedder=None) as store:
            store.remember("shown", "apple", "note", project="web")
        rows(url, "INSERT INTO role_access (role, organization) VALUES ('reader', 'local')")
        assert reader.execute("SELECT project FROM scope").fetchall() == [("web",)]
        assert titles(reader) == {"shown"}
        for statement in ("SELECT FROM posting", "SELECT name FROM scope", "SELECT FROM lock"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                reader.execute(statement)
    with MemoryStore.open(url.replace("memory@", "writer@"), embedder=None) as store:
        assert names(store) == {"shown"}
