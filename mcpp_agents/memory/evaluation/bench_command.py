"""`mcpp memory bench`: the quality of retrieval beside two baselines, as a table.

Intervals are 95 % by bootstrap over questions, of the paired difference in nDCG@10 to plain FTS5.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from statistics import fmean

from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.evaluation.collections import (
    Collection,
    Document,
    made_dialogues,
    read_cranfield,
    read_dialogues,
    read_locomo,
)
from mcpp_agents.memory.evaluation.measures import bootstrap, ndcg, recall
from mcpp_agents.memory.evaluation.searches import Search, embedder_alone, memory, plain_fts5
from mcpp_agents.memory.search.embedding import Embedder, available, load

Opening = Callable[[Sequence[Document]], AbstractContextManager[Search]]


@dataclass
class Scores:
    """One value per question, in order, and the types of the questions."""

    types: list[str] = field(default_factory=list)
    ndcg10: list[float] = field(default_factory=list)
    recall10: list[float] = field(default_factory=list)
    recall24: list[float] = field(default_factory=list)
    milliseconds: list[float] = field(default_factory=list)


def bench(options: argparse.Namespace) -> None:
    """Measure every search on every collection, and print a table for each.

    Raises:
        MemoryStoreError: a file cannot be read, or there are no questions.
    """
    names = options.embedders.split(",") if options.embedders else list(reversed(available()))
    tables = dict(_collections(options))
    if not tables:
        raise MemoryStoreError("There is nothing to measure: name a file, or --conversations")
    for title, collections in tables.items():
        if not any(collection.questions for collection in collections):
            raise MemoryStoreError(f"There are no questions: {title}")
    print_tables(tables, names)


def print_tables(tables: Mapping[str, Sequence[Collection]], embedders: Sequence[str]) -> None:
    """Print a table for each of these, with the named embedders."""
    loaded = {name: load(name) for name in embedders if name and name != "none"}
    for title, collections in tables.items():
        _print_table(title, collections, dict(_searches(loaded)))


def measure(collections: Sequence[Collection], opening: Opening) -> Scores:
    """Return the scores of a search over all questions of all collections."""
    scores = Scores()
    for collection in collections:
        with opening(collection.documents) as search:
            for question in collection.questions:
                start = time.perf_counter()
                ids = search(question.text)
                scores.milliseconds.append(1000 * (time.perf_counter() - start))
                scores.types.append(question.type)
                scores.ndcg10.append(ndcg(ids, question.gains))
                scores.recall10.append(recall(ids, question.gains, 10))
                scores.recall24.append(recall(ids, question.gains, 24))
    return scores


def _collections(options: argparse.Namespace) -> Iterator[tuple[str, list[Collection]]]:
    if options.conversations:
        yield "made-up dialogues", made_dialogues(options.conversations, seed=options.seed)
    if options.dialogues is not None:
        yield f"dialogues ({options.dialogues.name})", read_dialogues(options.dialogues)
    if options.locomo is not None:
        yield f"LoCoMo ({options.locomo.name})", read_locomo(options.locomo)
    if options.cranfield is not None:
        yield "Cranfield", read_cranfield(options.cranfield)


def _searches(embedders: dict[str, Embedder | None]) -> Iterator[tuple[str, Opening]]:
    yield "plain FTS5", plain_fts5
    for name, embedder in embedders.items():
        if embedder is not None:
            yield f"{name} alone", _bound(embedder_alone, embedder)
    yield "memory, words", lambda documents: memory(documents, None)
    for name, embedder in embedders.items():
        if embedder is not None:
            yield f"memory, {name}", _bound(memory, embedder)


def _bound(
    opening: Callable[[Sequence[Document], Embedder], AbstractContextManager[Search]],
    embedder: Embedder,
) -> Opening:
    return lambda documents: opening(documents, embedder)


def _print_table(
    title: str, collections: Sequence[Collection], searches: dict[str, Opening]
) -> None:
    questions = [one for collection in collections for one in collection.questions]
    documents = sum(len(collection.documents) for collection in collections)
    types = list(dict.fromkeys(question.type for question in questions))
    shown = types if len(types) > 1 else []
    sys.stdout.write(f"\n{title}: {len(questions)} questions, {documents} documents\n\n")
    head = ["search", "nDCG@10", "difference (95 %)", "R@10", "R@24", *shown, "ms"]
    sys.stdout.write(_row(head) + _row(["---"] * len(head)))
    baseline: Scores | None = None
    for name, opening in searches.items():
        scores = measure(collections, opening)
        baseline = baseline or scores
        of_type = [
            fmean(x for x, t in zip(scores.ndcg10, scores.types, strict=True) if t == type)
            for type in shown
        ]
        means = (scores.ndcg10, scores.recall10, scores.recall24)
        best, ten, more = (_number(fmean(each)) for each in means)
        difference = "" if scores is baseline else _difference(scores, baseline)
        cells = [name, best, difference, ten, more, *map(_number, of_type)]
        sys.stdout.write(_row([*cells, f"{fmean(scores.milliseconds):.1f}"]))
        sys.stdout.flush()


def _difference(scores: Scores, baseline: Scores) -> str:
    pairs = [a - b for a, b in zip(scores.ndcg10, baseline.ndcg10, strict=True)]
    low, high = bootstrap(pairs)
    return f"{fmean(pairs):+.3f} ({low:+.3f}, {high:+.3f})"


def _number(value: float) -> str:
    return f"{value:.3f}"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |\n"
