"""Quality of memory search: Cranfield's 225 questions over 1,400 abstracts, and dialogues.

    python -m benchmarks.retrieval [--data FOLDER] [--embedders none,wordllama,minilm]

Plain FTS5 and the store run in the same process on the same texts. Weights were tuned on the odd
questions; the even ones are reported separately. Intervals are 95 % by bootstrap over questions, of
the paired difference to plain FTS5. The dialogues (dialogues.txt: 102 made-up turns, 46 questions)
are a small check that tuning for abstracts does not make search in conversations worse.
"""

import argparse
import math
import random
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from mcpp_agents.memory import MemoryDraft, MemoryStore
from mcpp_agents.memory.search.embedding import available

_DATA = Path(__file__).parent.parent.parent / "shared" / "data" / "cranfield"
_DIALOGUES = Path(__file__).parent / "dialogues.txt"
_RESAMPLES = 2_000

Search = Callable[[str], list[int]]


@dataclass(frozen=True)
class Document:
    """An abstract, which begins with its title, or a dialogue turn, titled by its speaker."""

    number: int
    title: str
    text: str
    kind: str = "note"
    source: str | None = None


@dataclass(frozen=True)
class Question:
    """A question, and the gain of each document that answers it."""

    number: int
    text: str
    gains: dict[int, int]


@dataclass(frozen=True)
class Result:
    """One value per question, in order."""

    ndcg: list[float]
    recall: list[float]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print a table. Return 0, or 2 if the data is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.retrieval")
    parser.add_argument("--data", type=Path, default=_DATA, help="folder with the Cranfield files")
    parser.add_argument("--embedders", default=",".join(("none", *reversed(available()))))
    options = parser.parse_args(argv)
    embedders = options.embedders.split(",")
    print("made-up dialogues")
    _compare(*load_dialogues(_DIALOGUES), embedders)
    if not (options.data / "cran.all.1400").is_file():
        print(f"No Cranfield collection in {options.data}; set its folder with --data.")
        return 2
    print("Cranfield")
    _compare(*load(options.data), embedders)
    return 0


def _compare(
    documents: Sequence[Document], questions: Sequence[Question], embedders: Sequence[str]
) -> None:
    print(f"{len(documents)} documents, {len(questions)} questions")
    print(f"{'':22}{'nDCG@10':>9}{'odd':>8}{'even':>8}  {'difference (95 %)':24}{'recall@100':>10}")
    baseline = evaluate(plain_fts5(documents), questions)
    _report("plain FTS5", baseline, baseline)
    for name in embedders:
        with tempfile.TemporaryDirectory() as folder:
            result = evaluate(memory(documents, Path(folder) / "memory.db", name), questions)
        _report("words alone" if name == "none" else f"words and {name}", result, baseline)


def load(folder: Path) -> tuple[list[Document], list[Question]]:
    """Return the Cranfield collection. Judgements refer to questions by position, not by number."""
    documents = [
        Document(number, _joined(fields.get("T", [])), _joined(fields.get("W", [])))
        for number, fields in _records(folder / "cran.all.1400")
    ]
    gains: dict[int, dict[int, int]] = {}
    for line in (folder / "cranqrel").read_text().splitlines():
        question, document, code = map(int, line.split())
        # −1 marks the paper that prompted the question; treated as 1, a complete answer.
        gains.setdefault(question, {})[document] = 5 - (1 if code == -1 else code)
    questions = [
        Question(position, _joined(fields["W"]), gains[position])
        for position, (_, fields) in enumerate(_records(folder / "cran.qry"), 1)
    ]
    return documents, questions


def load_dialogues(file: Path) -> tuple[list[Document], list[Question]]:
    """Return the dialogue turns (`NAME: TEXT`) and the questions with their answers."""
    turns: dict[str, Document] = {}
    questions: list[Question] = []
    dialogue, place = "", 0
    for line in file.read_text().splitlines():
        if line.startswith("# "):
            dialogue, place = line.removeprefix("# "), 0
        elif "|" in line:
            text, _, answers = line.partition(" | ")
            gains = {turns[source].number: 1 for source in answers.split()}
            questions.append(Question(len(questions) + 1, text, gains))
        elif line:
            place += 1
            source, speaker = f"{dialogue}:{place}", line.partition(":")[0]
            turns[source] = Document(len(turns) + 1, speaker, line, "message", source)
    return list(turns.values()), questions


def evaluate(search: Search, questions: Sequence[Question]) -> Result:
    """Return the scores of a search over all questions."""
    found = [(question, search(question.text)) for question in questions]
    return Result(
        [ndcg(ids[:10], question.gains) for question, ids in found],
        [
            len(question.gains.keys() & set(ids[:100])) / len(question.gains)
            for question, ids in found
        ],
    )


def ndcg(ids: Sequence[int], gains: dict[int, int]) -> float:
    """Return the normalised discounted cumulative gain of the first ten."""
    ideal = sorted(gains.values(), reverse=True)[:10]
    return _dcg([gains.get(each, 0) for each in ids]) / _dcg(ideal)


def plain_fts5(documents: Sequence[Document]) -> Search:
    """Return the baseline: title and text in FTS5 with porter stemming, OR of all words, bm25."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE VIRTUAL TABLE f USING fts5 (title, text, tokenize = 'porter')")
    connection.executemany(
        "INSERT INTO f (rowid, title, text) VALUES (?, ?, ?)",
        [(document.number, document.title, document.text) for document in documents],
    )

    def search(text: str) -> list[int]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", text))
        sql = "SELECT rowid FROM f WHERE f MATCH ? ORDER BY bm25(f) LIMIT 100"
        return [row[0] for row in connection.execute(sql, [words])]

    return search


def memory(documents: Sequence[Document], path: Path, embedder: str) -> Search:
    """Return the search of a store with one memory per document."""
    store = MemoryStore.open(path, embedder=embedder)
    drafts = [
        MemoryDraft(
            title=_title(document),
            content=document.text or "(empty)",
            kind=document.kind,
            source=document.source,
        )
        for document in documents
    ]
    answers = store.remember_many(drafts)
    store.embed_pending()
    numbers = {answer.id: d.number for answer, d in zip(answers, documents, strict=True)}
    return lambda text: [numbers[found] for found, _ in store.search(text, limit=100)]


def bootstrap(differences: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the mean over resampled questions."""
    chance = random.Random(1)
    means = sorted(
        fmean(chance.choices(differences, k=len(differences))) for _ in range(_RESAMPLES)
    )
    return means[int(0.025 * _RESAMPLES)], means[int(0.975 * _RESAMPLES)]


def _report(name: str, result: Result, baseline: Result) -> None:
    differences = [a - b for a, b in zip(result.ndcg, baseline.ndcg, strict=True)]
    low, high = bootstrap(differences)
    print(
        f"{name:22}{fmean(result.ndcg):9.4f}{fmean(result.ndcg[::2]):8.4f}"
        f"{fmean(result.ndcg[1::2]):8.4f}  "
        f"{fmean(differences):+.4f} ({low:+.4f}, {high:+.4f}) {fmean(result.recall):10.4f}"
    )


def _dcg(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(place + 2) for place, gain in enumerate(gains))


def _records(path: Path) -> list[tuple[int, dict[str, list[str]]]]:
    records: list[tuple[int, dict[str, list[str]]]] = []
    lines: list[str] = []
    for line in path.read_text().splitlines():
        if head := re.fullmatch(r"\.I (\d+)\s*", line):
            records.append((int(head[1]), {}))
        elif re.fullmatch(r"\.[TABW]\s*", line):
            lines = records[-1][1].setdefault(line[1], [])
        else:
            lines.append(line)
    return records


def _joined(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def _title(document: Document) -> str:
    return document.title[:300] or f"document {document.number}"


def run() -> None:
    main([])


if __name__ == "__main__":
    sys.exit(main())
