"""Pages of a large log: found in bounded time, while it is indexed and afterwards."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from mcpp.filters import everything
from mcpp.protocol.contexts import Lineage
from mcpp_gateway.core.history.pages import Listener, Page, read_page
from mcpp_gateway.core.history.query import parse_query
from mcpp_gateway.core.records import Batch, LogEntry, encode_batch
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.file_source import FileSource
from mcpp_gateway.storage.helper.messages import MAX_WORK_BYTES, PAGE_SECONDS
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog
from mcpp_gateway.storage.segments import BATCH, STATE, NewRecord
from tests.gateway.harness import text

MOST_SECONDS: Final = 0.05  # for a page, of 95 %
KINDS: Final = ("chat", "mcp/request:tools/call:x", "mcp/response", "reflection")
WORDS: Final = [f"{chr(97 + number % 26)}{number * 7919 % 20_011:x}" for number in range(20_000)]
QUERIES: Final[dict[str, dict[str, Any]]] = {
    "everything": {},
    "a rare word": {"text": "zebra"},
    "a common word": {"text": WORDS[0]},
    "two words": {"text": f"{WORDS[0]} {WORDS[7]}"},
    "a script without spaces": {"text": "退款"},
    "a prefix": {"text": "b1*"},
    "a phrase": {"text": f'"{WORDS[0]} {WORDS[1]}"'},
    "no such word": {"text": "nothing"},
    "a context": {"context": "parent-3"},
    "a context and a word": {"context": "parent-3", "text": WORDS[1]},
    "a sender": {"filter": {"from": "agent-7"}},
    "a sender and a kind": {"filter": {"all": [{"from": "agent-7"}, {"kind": "mcp/*"}]}},
    "all but a sender": {"filter": {"not": {"from": "agent-7"}}},
    "what the index cannot find": {"filter": {"all": [{"not": {"kind": "*"}}]}},
    "a time and a word": {"after": 10.0, "before": 1e9, "text": WORDS[9]},
    "everything at once": {
        "filter": {"all": [{"from": "agent-7"}, {"type": "task"}]},
        "text": WORDS[0],
        "context": "parent-3",
        "after": 1.0,
    },
}


def write(folder: Path, count: int) -> SegmentLog:
    """Write a log of envelopes of about 500 bytes."""
    chosen = random.Random(1)
    lineages = [
        Lineage(f"c-{number}", "task" if number % 3 else "reasoning", (f"parent-{number % 50}",))
        for number in range(2000)
    ]
    sentences = [
        " ".join(WORDS[int(len(WORDS) * chosen.random() ** 5)] for _ in range(40))
        for _ in range(2000)
    ]
    log = SegmentLog(OsDisk(folder))
    log.recover()
    log.create(NewRecord(STATE, 0, 0.0, b""), 1)
    for batch, first in enumerate(range(0, count, 20)):
        entries = []
        for at in range(first, first + 20):
            said = chosen.choice(sentences)
            said += " zebra" * (at % 50_000 == 7) + " 我要退款" * (at % 5000 == 9)
            id, sender, kind = f"id-{at:08}", f"agent-{at % 100}", KINDS[at % 4]
            lineage = chosen.choice(lineages) if at % 2 else None
            data = text(id, sender, kind, {"text": said})
            entries.append(LogEntry(id, sender, None, kind, lineage, data))
        time = first / 100
        data = encode_batch(Batch(1, batch, first, time, entries))
        log.grow()
        log.write([NewRecord(BATCH, first, time, data, 20)])
        if log.is_full:
            log.sync()
            log.roll(NewRecord(STATE, first + 20, time, b""), first + 2)
    log.sync()
    return log


@contextmanager
def indexed(folder: Path, count: int) -> Iterator[Callable[[dict[str, Any]], Page]]:
    """Yield a function that reads a page; the index is complete."""
    log = write(folder, count)
    index = LogIndex(folder, log, "epoch")
    began = time.monotonic()
    index.start(count)
    assert time.monotonic() - began < 8, "ids are indexed before a gateway listens"

    def page(query: dict[str, Any]) -> Page:
        until = time.monotonic() + PAGE_SECONDS
        return read_page(
            parse_query(query),
            Listener("viewer", everything),
            FileSource(log, index, count),
            max_work_bytes=MAX_WORK_BYTES,
            in_time=lambda: time.monotonic() < until,
        )

    try:
        for query in QUERIES.values():
            page(query)  # whatever is not indexed yet
        deadline = time.monotonic() + 600
        while index.text.indexed_to < count:
            assert time.monotonic() < deadline
            index._stopping.wait(0.1)
        yield page
    finally:
        index.stop()
        log.close()


def check_pages(page: Callable[[dict[str, Any]], Page], count: int, repeats: int) -> None:
    chosen = random.Random(2)
    seconds: list[float] = []
    for query in QUERIES.values():
        for number in range(repeats):
            at = chosen.randrange(count)
            cursor, order = ((f"0-{at}", "newest"), (f"{at}-", "oldest"))[number % 2]
            wanted = {**query, "order": order}
            if "after" not in query:
                wanted["cursor"] = cursor
            began = time.thread_time()
            found = page(wanted)
            seconds.append(time.thread_time() - began)
            assert len(found.found) <= 100
    seconds.sort()
    assert seconds[int(len(seconds) * 0.95)] <= MOST_SECONDS


@pytest.mark.rule("H-05", "H-08")
@pytest.mark.slow
def test_pages_of_a_large_log_are_found_in_bounded_time(tmp_path: Path) -> None:
    with indexed(tmp_path, 30_000) as page:
        check_pages(page, 30_000, 4)


@pytest.mark.rule("H-05", "H-08")
@pytest.mark.torture
def test_pages_of_a_million_envelopes_are_found_in_bounded_time(tmp_path: Path) -> None:
    with indexed(tmp_path, 1_000_000) as page:
        check_pages(page, 1_000_000, 40)
