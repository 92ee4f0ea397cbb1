"""Speed of the memory on PostgreSQL: packs from a million items with vectors, and 100 clients.

    python -m benchmarks.memory_postgres [--memories 1000000] [--dimensions 256] [--folder KEEP]

The items are notes of 46 words drawn by Zipf's law, in ten projects, each with a vector around one
of a thousand centres. Of every four items, three repeat the words of the first with a vector of
their own. They are loaded with COPY, which `remember` does not use; the rate of `remember` is
measured apart. A folder keeps the database for the next run.

The goal is a pack within 100 ms at the 95th percentile: for one caller after another, and for 100
clients at once that each ask at random times. If each of them asks again at once, the time of a
pack is the number of clients divided by the packs per second, which the processors limit; this is
reported too. The recall of the vector indexes is compared with an exact search.
"""

import argparse
import itertools
import math
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psycopg

from benchmarks.memory import Notes
from mcpp_agents.memory import OWNER, MemoryDraft, MemoryStore, Principal
from mcpp_agents.memory.access import scope_for, view_of
from mcpp_agents.memory.search.tokenizer import Tokenizer
from mcpp_agents.memory.storage.fts_table import COLUMN_WEIGHTS
from mcpp_agents.memory.storage.postgres.postgres import PostgresEngine
from mcpp_agents.memory.storage.postgres.vector_search import EXACT_ITEMS
from mcpp_agents.memory.storage.postgres.words import pair_number, word_number
from mcpp_agents.memory.vocabulary import KINDS
from tests.agents.memory.postgres_server import PostgresServer, installed_programs, running_server

_PROJECTS = [f"project-{number}" for number in range(10)]
_PRINCIPALS = {
    "of the whole database": OWNER,
    "of one project": Principal("pod:demo", frozenset(_PROJECTS[:1])),
    "of nine projects": Principal("ann", frozenset(_PROJECTS[1:])),
}
_SETTINGS = {
    "shared_buffers": "6GB",  # most of the database; with 2 GB, pages come from the system's cache
    "maintenance_work_mem": "2GB",
    "max_wal_size": "8GB",
    "autovacuum": "on",
    "dynamic_shared_memory_type": "mmap",
    "max_parallel_maintenance_workers": "1",
}
_CHUNK = 20_000
_CENTRES = 1_000
_REPETITIONS = 4
_TITLE_WORDS = 6
_CLIENTS = 100
_WARM_UP_SECONDS = 5.0  # the first packs of a connection prepare their statements
_REACHED_MS = 100


class SyntheticEmbedder:
    """Maps a text to a point near one of the centres."""

    lexical_share = 0.6

    def __init__(self, dimensions: int) -> None:
        self.model = f"synthetic-{dimensions}"
        self.dimensions = dimensions
        chance = np.random.default_rng(1)
        self._centres = _units(chance.standard_normal((_CENTRES, dimensions), np.float32))
        self._chance = np.random.default_rng(2)

    def embed(self, texts: Sequence[str]) -> Any:
        return self.draw(len(texts))

    def draw(self, count: int) -> Any:
        """Return random points."""
        near = self._centres[self._chance.integers(0, _CENTRES, count)]
        noise = self._chance.standard_normal(near.shape, np.float32)
        return _units(near + 1.2 * noise / math.sqrt(self.dimensions))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Return 0 if all goals are met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory_postgres")
    parser.add_argument("--memories", type=int, default=1_000_000)
    parser.add_argument("--dimensions", type=int, default=256)
    parser.add_argument("--packs", type=int, default=200)
    parser.add_argument("--rate", type=float, default=10, help="packs per second of all clients")
    parser.add_argument("--seconds", type=float, default=20, help="how long the clients ask")
    parser.add_argument("--folder", type=Path, help="where the database is kept")
    parser.add_argument("--load-only", action="store_true")
    options = parser.parse_args(argv)
    programs = installed_programs()
    if programs is None:
        print("PostgreSQL is not installed: make setup-postgres")
        return 0
    if options.folder:
        options.folder.mkdir(parents=True, exist_ok=True)
    with running_server(programs, _SETTINGS, options.folder) as server:
        return _measure(server, options)


def _measure(server: PostgresServer, options: argparse.Namespace) -> int:
    embedder = SyntheticEmbedder(options.dimensions)
    language = Notes(random.Random(1))
    if not server.execute("SELECT 1 FROM pg_roles WHERE rolname = 'memory'"):
        server.add_role()
        url = server.new_database()
        start = time.perf_counter()
        _load(server, url, language, embedder, options.memories)
        print(f"loaded                 {time.perf_counter() - start:10,.0f} s")
    url = server.url("memory_1", "memory")
    [(size, items)] = server.execute(
        "SELECT pg_database_size('memory_1'), (SELECT sum(items) FROM mcpp_memory.scope)",
        "memory_1",
    )
    print(f"database               {size / 1e6:10,.0f} MB, {items:,} items")
    if options.load_only:
        return 0
    with MemoryStore.open(url, embedder=embedder) as store:
        store.embed_pending()  # looks for items without a vector, which takes some seconds
        reached = _sequential(store, language, options.packs)
        reached &= _concurrent(store, language, options.seconds, options.rate) <= _REACHED_MS
        _concurrent(store, language, options.seconds)
        _recall(url, embedder)
        _remember(store, language)
    return 0 if reached else 1


# Loading


def _load(
    server: PostgresServer, url: str, language: Notes, embedder: SyntheticEmbedder, count: int
) -> None:
    MemoryStore.open(url, embedder=None).close()  # creates the tables
    numbers = _Numbers(language)
    scopes = [scope_for(OWNER, project=name, agent=None) for name in _PROJECTS]
    with psycopg.connect(server.url("memory_1"), autocommit=True) as connection:
        connection.execute("SET search_path = mcpp_memory, public")
        connection.execute("ALTER TABLE posting DROP CONSTRAINT posting_pkey")
        for number, name in enumerate(scopes):
            connection.execute(
                "INSERT INTO scope (name, organization, project) VALUES (%s, 'local', %s)",
                [name, _PROJECTS[number]],
            )
        connection.execute(
            "INSERT INTO model (name, dimensions) VALUES (%s, %s)",
            [embedder.model, embedder.dimensions],
        )
        distinct = math.ceil(count / _REPETITIONS)
        for first in range(1, distinct + 1, _CHUNK):
            last = min(first + _CHUNK, distinct + 1)
            _load_chunk(connection, numbers, language, range(first, last))
            _load_vectors(connection, embedder, range(first, last))
            print(f"\r{last - 1:,} distinct items", end="", flush=True)
        print()
        _repeat(connection, distinct, count)
        _index_words(connection, count)
    start = time.perf_counter()
    engine = PostgresEngine(url)
    engine.build_index(embedder.model)
    engine.close()
    print(f"indexes of vectors     {time.perf_counter() - start:10,.0f} s")
    server.execute("VACUUM ANALYZE", "memory_1")


def _repeat(connection: "psycopg.Connection[Any]", distinct: int, count: int) -> None:
    """Store the items again under other numbers; a vector becomes the mean of two."""
    item = "scope, neighbourhood, kind, title, content, keys, near, grams"
    item += ", created_at, since, principal, origin, more"
    for offset in range(distinct, count, distinct):
        most = min(distinct, count - offset)
        mean = (
            "l2_normalize(data + (SELECT o.data FROM embedding o"
            f" WHERE o.seq = (t.seq + {offset} * 7) % {distinct} + 1))"
        )
        for table, columns, values in (
            ("memory", f"id, {item}", f"'mem_' || seq + {offset}, {item}"),
            ("word_list", "scope, length, words, pairs", "scope, length, words, pairs"),
            ("posting", *["word, scope, length, frequency, own"] * 2),
            ("embedding", "model, scope, data", f"model, scope, {mean}"),
        ):
            connection.execute(
                f"INSERT INTO {table} (seq, {columns})"
                f" SELECT seq + {offset}, {values} FROM {table} t WHERE seq <= {most}"
            )
        print(f"\r{offset + most:,} items", end="", flush=True)
    print()


def _index_words(connection: "psycopg.Connection[Any]", count: int) -> None:
    connection.execute("SELECT setval('memory_number', %s)", [count])
    connection.execute(
        "UPDATE scope SET items = counted.items, tokens = counted.tokens,"
        " first = counted.first, last = counted.last FROM (SELECT scope, count(*) AS items,"
        "  sum(length) AS tokens, min(seq) AS first, max(seq) AS last"
        "  FROM word_list GROUP BY scope) AS counted WHERE counted.scope = scope.id"
    )
    start = time.perf_counter()
    connection.execute(
        "ALTER TABLE posting ADD PRIMARY KEY (word, scope, seq) INCLUDE (frequency, length)"
    )
    print(f"index of words         {time.perf_counter() - start:10,.0f} s")


class _Numbers:
    """The numbers of the made-up words and their pairs."""

    def __init__(self, language: Notes) -> None:
        split = Tokenizer().split(language.vocabulary)
        self._stems = {word: stem for word, [stem] in zip(language.vocabulary, split, strict=True)}

    def word(self, word: str) -> int:
        return word_number(self._stems[word])

    def pairs(self, words: Sequence[str]) -> set[int]:
        stems = [self._stems[word] for word in words]
        return {pair_number(a, b) for a, b in itertools.pairwise(stems)}


def _load_chunk(
    connection: "psycopg.Connection[Any]", numbers: _Numbers, language: Notes, seqs: range
) -> None:
    kinds = list(KINDS)
    items, lists, postings = [], [], []
    now = time.time()
    for seq in seqs:
        words = language.text(language.words + _TITLE_WORDS).split()
        title, content = words[:_TITLE_WORDS], words[_TITLE_WORDS:]
        counts: Counter[int] = Counter()
        for part, weight in ((title, COLUMN_WEIGHTS["title"]), (content, 1.0)):
            for word in part:
                counts[numbers.word(word)] += weight  # type: ignore[assignment]
        scope, kind = seq % len(_PROJECTS) + 1, kinds[seq % len(kinds)]
        more = (
            f'{{"updated_at": {now}, "domain": null, "project": "{_PROJECTS[scope - 1]}",'
            ' "agent_id": null, "tags": [], "retrieval_keys": [], "source": null, "url": null,'
            ' "valid_at": null, "metadata": {}}'
        )
        items.append(
            f"{seq}\tmem_{seq}\t{scope}\t\t{kind}\t{' '.join(title)}\t{' '.join(content)}\t\t\t"
            f"\t{now}\t{now}\towner\tdirect\t{more}\n"
        )
        pairs = numbers.pairs(title) | numbers.pairs(content)
        listed = "{" + ",".join(map(str, counts)) + "}"
        paired = "{" + ",".join(map(str, pairs)) + "}"
        lists.append(f"{seq}\t{scope}\t{len(words)}\t{listed}\t{paired}\n")
        postings += [
            f"{number}\t{seq}\t{scope}\t{len(words)}\t{value}\tt\n"
            for number, value in counts.items()
        ]
    columns = (
        "seq, id, scope, neighbourhood, kind, title, content, keys, near, grams, created_at, since,"
        " principal, origin, more"
    )
    for table, rows in (
        (f"memory ({columns})", items),
        ("word_list (seq, scope, length, words, pairs)", lists),
        ("posting (word, seq, scope, length, frequency, own)", postings),
    ):
        with connection.cursor().copy(f"COPY {table} FROM STDIN") as copy:
            copy.write("".join(rows))


def _load_vectors(
    connection: "psycopg.Connection[Any]", embedder: SyntheticEmbedder, seqs: range
) -> None:
    """Copy vectors in PostgreSQL's binary format."""
    width = embedder.dimensions
    row = np.dtype(
        [("fields", ">i2"), ("l1", ">i4"), ("seq", ">i8"), ("l2", ">i4"), ("model", ">i4"),
         ("l3", ">i4"), ("scope", ">i4"), ("l4", ">i4"), ("width", ">i2"), ("unused", ">i2"),
         ("data", ">f2", (width,))]
    )  # fmt: skip
    rows = np.zeros(len(seqs), row)
    numbers = np.arange(seqs.start, seqs.stop)
    values = {
        "fields": 4, "l1": 8, "seq": numbers, "l2": 4, "model": 1, "l3": 4,
        "scope": numbers % len(_PROJECTS) + 1, "l4": 4 + 2 * width, "width": width,
        "data": embedder.draw(len(seqs)),
    }  # fmt: skip
    for name, value in values.items():
        rows[name] = value
    sql = "COPY embedding (seq, model, scope, data) FROM STDIN WITH (FORMAT binary)"
    with connection.cursor().copy(sql) as copy:
        copy.write(b"PGCOPY\n\xff\r\n\0" + bytes(8) + rows.tobytes() + b"\xff\xff")


# Measuring


def _sequential(store: MemoryStore, language: Notes, packs: int) -> bool:
    print("packs of 24, one after another")
    reached = True
    for name, principal in _PRINCIPALS.items():
        caller = store.acting_as(principal)
        times = []
        for number in range(packs + 20):
            goal = language.goal()
            start = time.perf_counter()
            caller.context(goal)
            if number >= 20:  # the first ones fill caches
                times.append((time.perf_counter() - start) * 1e3)
        reached &= _report(name, times) <= _REACHED_MS
    return reached


def _concurrent(
    store: MemoryStore, language: Notes, seconds: float, rate: float | None = None
) -> float:
    """Let clients ask, at random times with a rate of all together or one pack after another.

    Return the 95th percentile.
    """
    times: list[tuple[float, float]] = []  # when each was asked for, and how long it took
    # Drawn in advance: while a thread draws, all others wait for the interpreter.
    goals = [language.goal() for _ in range(1_000)]
    start = time.perf_counter() + _WARM_UP_SECONDS
    until = start + seconds
    principals = list(_PRINCIPALS.values())

    def ask(number: int) -> None:
        chance = random.Random(number)
        caller = store.acting_as(principals[number % len(principals)])
        while True:
            due = time.perf_counter()
            if rate is not None:
                due += chance.expovariate(rate / _CLIENTS)
            if due > until:
                return
            time.sleep(max(0.0, due - time.perf_counter()))
            asked = time.perf_counter()
            caller.context(chance.choice(goals))
            times.append((asked, (time.perf_counter() - asked) * 1e3))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(_CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asking = "at random times" if rate is not None else "one pack after another each"
    measured = [taken for asked, taken in times if asked >= start]
    done = len(measured) / (time.perf_counter() - start)
    print(f"{_CLIENTS} clients at once, {asking}: {done:.1f} packs/s")
    return _report("of all clients", measured)


def _recall(url: str, embedder: SyntheticEmbedder) -> None:
    """Compare the vector indexes with an exact search."""
    limit, queries = 100, 10
    exact, indexed = (PostgresEngine(url, exact_items=most) for most in (10**9, EXACT_ITEMS))
    for name, principal in _PRINCIPALS.items():
        found = 0
        for vector in embedder.draw(queries):
            best, close = (
                engine.nearest(
                    embedder.model, vector.tobytes(), view_of(principal), limit=limit, also=()
                )
                for engine in (exact, indexed)
            )
            found += len(best.keys() & close.keys())
        print(f"  recall@{limit} {name:20} {found / limit / queries:.3f}")
    exact.close()
    indexed.close()


def _remember(store: MemoryStore, language: Notes) -> None:
    count = 2_000
    drafts = [
        MemoryDraft(title=language.text(6), content=language.text(40), project=_PROJECTS[0])
        for _ in range(count)
    ]
    start = time.perf_counter()
    store.remember_many(drafts)
    print(f"remember, in bulk      {count / (time.perf_counter() - start):10,.0f} /s")


def _report(name: str, times: list[float]) -> float:
    """Print a line and return the 95th percentile."""
    ordered = sorted(times)
    p50, p95 = (ordered[int(len(ordered) * part)] for part in (0.5, 0.95))
    print(f"  {name:24} p50 {p50:6.1f} ms   p95 {p95:6.1f} ms")
    return p95


def _units(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def run() -> None:
    main([])


if __name__ == "__main__":
    sys.exit(main())
