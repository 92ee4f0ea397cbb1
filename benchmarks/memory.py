"""Speed of the memory: storing in bulk, and packs from 100,000 memories.

    python -m benchmarks.memory [--memories 100000] [--packs 200] [--embedder none|wordllama|…]

There are two workloads, with words drawn by Zipf's law. Notes have 40 words, and goals eight.
Abstracts have 108 words; half of a question's twelve words are among the 300 most common ones, as
in English. Each of those occurs in thousands of memories, the first ones in more than half.

The goals are 2,000 memories per second in bulk, and a pack within 50 ms at the 95th percentile:
for callers who see the whole file, one project or most projects, right after a memory was added or
removed, and for a single common word. On a shared machine, CPU time (in brackets) is more
meaningful than elapsed time.
"""

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mcpp_agents.memory import OWNER, MemoryDraft, MemoryStore, Principal
from mcpp_agents.memory.search.embedding import NAMES, load
from mcpp_agents.memory.vocabulary import INTENTS, KINDS

_BATCH = 1_000
_VOCABULARY = 30_000
_PROJECTS = [f"project-{number}" for number in range(10)]
_PRINCIPALS = {
    "of the whole file": OWNER,
    "of one project": Principal.for_pod("demo", granted=frozenset(_PROJECTS[:1])),
    "of nine projects": Principal("ann", frozenset(_PROJECTS[1:])),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Return 0 if all goals are met, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory")
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--packs", type=int, default=200)
    parser.add_argument("--embedder", choices=NAMES, default="wordllama")
    options = parser.parse_args(argv)
    reached = [_measure(load, options) for load in (Notes, Abstracts)]
    return 0 if all(reached) else 1


def _measure(load_type: "type[Language]", options: argparse.Namespace) -> bool:
    language = load_type(random.Random(1))
    print(f"{load_type.__name__.lower()} of {language.words} words")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "memory.db"
        embedder = load(options.embedder)
        with MemoryStore.open(path, embedder=embedder) as store:
            rate = _store(store, language, options.memories)
            print(f"remember, in bulk      {rate:10,.0f} /s, found by words at once")
            start = time.perf_counter()
            store.embed_pending()
            if embedder:
                waited = time.perf_counter() - start
                print(f"last vector            {waited:10,.1f} s later, by {embedder.model}")
            print(f"packs of 24 from {options.memories:,}")
            slowest = max(
                _report(name, _packs(store.acting_as(principal), language, options.packs))
                for name, principal in _PRINCIPALS.items()
            )
            for name, change in (("remembering", _remember_one), ("forgetting", _forget_one)):
                times = _packs(store, language, options.packs, partial(change, store, language))
                slowest = max(slowest, _report(f"after {name}", times))
            times = _packs(store, language, options.packs, goal=language.common_word)
            slowest = max(slowest, _report("for a common word", times))
        size = path.stat().st_size
    print(f"file                   {size / 1e6:10,.0f} MB")
    return rate >= 2_000 and slowest <= 50


class Language:
    """Random words distributed by Zipf's law."""

    words = 40
    stop_words = 20  # the most common words, which goals do not contain

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.vocabulary = [self._word() for _ in range(_VOCABULARY)]
        self._weights = list(itertools.accumulate(1 / (rank + 3) for rank in range(_VOCABULARY)))

    def text(self, words: int) -> str:
        return " ".join(self.chance.choices(self.vocabulary, cum_weights=self._weights, k=words))

    def goal(self) -> str:
        return self._draw(8)

    def common_word(self) -> str:
        return self._draw(1, among=50)

    def _draw(self, count: int, among: int = _VOCABULARY) -> str:
        first = self.stop_words
        weights = [weight - self._weights[first - 1] for weight in self._weights[first:among]]
        return " ".join(
            self.chance.choices(self.vocabulary[first:among], cum_weights=weights, k=count)
        )

    def _word(self) -> str:
        syllables = self.chance.randint(2, 4)
        return "".join(
            self.chance.choice("bcdfghklmnprstvz") + self.chance.choice("aeiou")
            for _ in range(syllables)
        )


class Notes(Language):
    """Short texts, and goals with rare words."""


class Abstracts(Language):
    """Texts of the length of an abstract, and questions with many common words."""

    words = 108
    stop_words = 10

    def goal(self) -> str:
        return f"{self._draw(6)} {self._draw(6, among=300)}"


def _store(store: MemoryStore, language: Language, count: int) -> float:
    kinds = list(KINDS)
    spent = 0.0
    for _ in range(0, count, _BATCH):
        drafts = [
            MemoryDraft(
                title=language.text(6),
                content=language.text(language.words),
                kind=language.chance.choice(kinds),
                project=language.chance.choice(_PROJECTS),
            )
            for _ in range(_BATCH)
        ]
        start = time.perf_counter()
        store.remember_many(drafts)
        spent += time.perf_counter() - start
    return count / spent


def _remember_one(store: MemoryStore, language: Language) -> None:
    text = language.text(language.words)
    store.remember(language.text(6), text, "note", project=_PROJECTS[0])


def _forget_one(store: MemoryStore, language: Language) -> None:
    [(id, _)] = store.search(language.goal(), limit=1)
    store.forget(id)


def _packs(
    store: MemoryStore,
    language: Language,
    count: int,
    before_each: Callable[[], None] = lambda: None,
    goal: Callable[[], str] | None = None,
) -> tuple[list[float], list[float]]:
    """Return elapsed and CPU milliseconds, each sorted."""
    clock, processor = [], []
    goal = goal or language.goal
    store.context(language.goal())  # the first call loads the vectors
    for _ in range(count):
        before_each()
        text, intent = goal(), language.chance.choice(INTENTS)
        start, worked = time.perf_counter(), time.process_time()
        store.context(text, intent=intent)
        clock.append((time.perf_counter() - start) * 1e3)
        processor.append((time.process_time() - worked) * 1e3)
    return sorted(clock), sorted(processor)


def _report(name: str, times: tuple[list[float], list[float]]) -> float:
    """Print a line and return the 95th percentile of the elapsed time."""
    (p50, cpu50), (p95, cpu95) = (
        [each[int(len(each) * part)] for each in times] for part in (0.5, 0.95)
    )
    print(f"  {name:20} p50 {p50:5.1f} ms ({cpu50:5.1f})   p95 {p95:5.1f} ms ({cpu95:5.1f})")
    return p95


def run() -> None:
    main([])


if __name__ == "__main__":
    sys.exit(main())
