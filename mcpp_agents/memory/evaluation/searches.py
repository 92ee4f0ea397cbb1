"""What is compared: the store, plain FTS5, and an embedder alone, on the same documents."""

import re
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mcpp_agents.memory.evaluation.collections import Document
from mcpp_agents.memory.requests import MAX_TITLE_CHARS, MemoryDraft
from mcpp_agents.memory.search.embedding import Embedder
from mcpp_agents.memory.store import MemoryStore

DEPTH: Final = 100

Search = Callable[[str], list[str]]


@contextmanager
def plain_fts5(documents: Sequence[Document]) -> Iterator[Search]:
    """Yield the baseline: title and text in FTS5 with porter stemming, OR of all words, bm25."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE f USING fts5 (title, text, tokenize = 'porter')")
    connection.executemany(
        "INSERT INTO f (rowid, title, text) VALUES (?, ?, ?)",
        [(place, document.title, document.text) for place, document in enumerate(documents)],
    )

    def search(text: str) -> list[str]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", text))
        sql = f"SELECT rowid FROM f WHERE f MATCH ? ORDER BY bm25(f) LIMIT {DEPTH}"
        return [documents[row[0]].id for row in connection.execute(sql, [words])]

    try:
        yield search
    finally:
        connection.close()


@contextmanager
def embedder_alone(documents: Sequence[Document], embedder: Embedder) -> Iterator[Search]:
    """Yield the baseline: the cosine of the goal and each document."""
    import numpy as np

    vectors = embedder.embed([f"{document.title}\n{document.text}" for document in documents])

    def search(text: str) -> list[str]:
        cosines = vectors @ embedder.embed([text])[0]
        return [documents[int(place)].id for place in np.argsort(-cosines)[:DEPTH]]

    yield search


@contextmanager
def memory(documents: Sequence[Document], embedder: Embedder | None) -> Iterator[Search]:
    """Yield the search of a store with one memory per document."""
    with (
        tempfile.TemporaryDirectory() as folder,
        MemoryStore.open(Path(folder) / "memory.db", embedder=embedder) as store,
    ):
        drafts = [
            MemoryDraft(
                title=document.title[:MAX_TITLE_CHARS] or f"document {document.id}",
                content=document.text or "(empty)",
                kind=document.kind,
                source=document.source,
                valid_at=document.valid_at,
            )
            for document in documents
        ]
        answers = store.remember_many(drafts)
        store.embed_pending()
        ids = {answer.id: one.id for answer, one in zip(answers, documents, strict=True)}
        yield lambda text: [ids[found] for found, _ in store.search(text, limit=DEPTH)]
