"""The words of texts are those of FTS5's tokenizer."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.search.tokenizer import TOKENIZER, Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with closing(Tokenizer()) as tokenizer:
        yield tokenizer


def _split_by_fts5(text: str) -> list[str]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE VIRTUAL TABLE one USING fts5 (text, {TOKENIZER})")
        connection.execute("CREATE VIRTUAL TABLE word USING fts5vocab (one, instance)")
        connection.execute("INSERT INTO one VALUES (?)", [text])
        return [term for (term,) in connection.execute("SELECT term FROM word ORDER BY offset")]


@given(texts=st.lists(st.text(), max_size=3))
def test_words_are_those_that_fts5_indexes(tokenizer: Tokenizer, texts: list[str]) -> None:
    assert tokenizer.split(texts) == [_split_by_fts5(text) for text in texts]


def test_spaces_of_every_kind_separate_words(tokenizer: Tokenizer) -> None:
    text = "running\u00a0the\u3000re-entry\x85Überprüfung\x1fx 用户auth服务"
    words = ["run", "the", "re", "entri", "uberprufung", "x", "用户auth服务"]
    assert tokenizer.split([text, "", text]) == [words, [], words]
    assert _split_by_fts5(text) == words


def test_few_pieces_are_kept(tokenizer: Tokenizer) -> None:
    tokenizer.split(["x" * 1_000, " ".join(map(str, range(60_000))), "again"])
    assert tokenizer.split(["again " + "x" * 1_000]) == [["again", "x" * 1_000]]
    assert len(tokenizer._kept) <= 50_000


@pytest.mark.rule("M-09", "M-27")
@pytest.mark.parametrize("text", ["字" * 16_000, "a" + "ж" * 20_000, "ภาษาไทย" * 4_600])
def test_words_that_fts5_cuts_inside_of_a_character_are_words(
    store: MemoryStore, text: str
) -> None:
    answer = store.remember("Long", f"{text[:32_000]} zebra")
    assert [item.id for item in store.context("zebra").items] == [answer.id]
    assert store.context(text[:32_000]).total_items <= 1
