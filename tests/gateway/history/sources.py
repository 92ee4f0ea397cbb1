"""A random log and random queries, in memory and in files, and an oracle that answers naively."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from mcpp.filters import Filter, everything, parse
from mcpp.protocol.contexts import Lineage
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.history.pages import MemorySource, Page, Source, read_page
from mcpp_gateway.core.history.query import parse_query
from mcpp_gateway.core.journal import MemoryJournal
from mcpp_gateway.core.records import Batch, LogEntry, encode_batch
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.file_source import FileSource
from mcpp_gateway.storage.index.log_index import LogIndex
from mcpp_gateway.storage.segment_log import SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import BATCH, STATE, NewRecord
from tests.gateway.harness import text

WORDS = ["refund", "Refunds", "order", "Straße", "退款", "退", "款项", "naïve", "42", "re-fund"]
LINEAGES = [
    None,
    Lineage("task", "task"),
    Lineage("step", "reasoning", ("task",)),
    Lineage("deep", "reasoning", ("step", "task")),
    Lineage("other", None, ()),
]
SENDERS = ["alice", "bob", "system:gateway"]
KINDS = ["chat", "mcp/request:tools/call:a", "mcp/response", "x"]

ENTRIES = st.tuples(
    st.sampled_from(SENDERS),
    st.sampled_from([None, ("alice",), ("bob", "carol"), frozenset(f"t{n}" for n in range(80))]),
    st.sampled_from(KINDS),
    st.sampled_from(LINEAGES),
    st.lists(st.sampled_from(WORDS), max_size=3),
)
LEAVES = st.sampled_from(
    [
        {"main": True},
        {"type": "reasoning"},
        {"context": "task"},
        {"context": "task", "descendants": True},
        {"kind": "mcp/*"},
        {"kind": "mcp/request:*"},
        {"kind": "*a"},
        {"kind": "chat"},
        {"from": "alice"},
        {"to": "bob"},
        {"to": "t7"},
    ]
)
FILTERS = st.recursive(
    LEAVES,
    lambda inner: (
        st.builds(lambda parts: {"any": parts}, st.lists(inner, max_size=3))
        | st.builds(lambda parts: {"all": parts}, st.lists(inner, max_size=3))
        | st.builds(lambda part: {"not": part}, inner)
    ),
    max_leaves=5,
)
TEXTS = st.sampled_from(
    [
        *WORDS,
        "ref*",
        '"refund order"',
        "refund order",
        "STRASSE",
        "naive",
        "退*",
        "款",
        "zebra",
        "?!",
    ]
)


def bounds(count: int) -> st.SearchStrategy[Any]:
    ids = st.integers(0, max(count - 1, 0)).map(lambda number: f"m{number}")
    return ids | st.integers(-1, count + 1).map(float) if count else st.just(0.0)


def queries(count: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "filter": FILTERS,
            "context": st.sampled_from(["task", "step", "other", "unknown"]),
            "text": TEXTS,
            "after": bounds(count),
            "before": bounds(count),
            "limit": st.integers(1, 7),
            "order": st.sampled_from(["newest", "oldest"]),
        },
    )


@dataclass
class RandomLog:
    """One log in memory and in files. The time of an entry is the position its batch begins at."""

    folder: Path
    entries: list[LogEntry] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    memory: MemoryJournal = field(default_factory=lambda: MemoryJournal(10_000, 1 << 30))
    log: SegmentLog = field(init=False)
    index: LogIndex = field(init=False)
    _batches: int = 0

    def __post_init__(self) -> None:
        options = SegmentOptions(segment_bytes=4096, chunk_bytes=65_536, reserve_bytes=1024)
        self.log = SegmentLog(OsDisk(self.folder), options)
        self.log.recover()
        self.log.create(NewRecord(STATE, 0, 0.0, b""), salt=1)
        self.index = LogIndex(self.folder, self.log, "epoch")
        self.index.text.part_bits, self.index.text.found_at_once = 2, 2
        self.index.rest_seconds = 0.001
        self.index.start(0)

    def add(self, rows: list[Any]) -> None:
        if not rows:
            return
        first = len(self.entries)
        entries = [
            LogEntry(
                f"m{at}",
                sender,
                to,
                kind,
                lineage,
                text(f"m{at}", sender, kind, {"said": [" ".join(words), 42 * ("42" in words)]}),
                time=float(first),
            )
            for at, (sender, to, kind, lineage, words) in enumerate(rows, first)
        ]
        for entry in entries:
            self.memory.append(entry)
        self.entries += entries
        self.times += [float(first)] * len(entries)
        batch = Batch(1, self._batches, first, float(first), entries)
        self.log.write([NewRecord(BATCH, first, float(first), encode_batch(batch), len(entries))])
        self.log.sync()
        self._batches += 1
        if self.log.is_full:
            self.log.roll(NewRecord(STATE, len(self.entries), float(first), b""), salt=first + 2)

    def source(self, kind: str) -> Source:
        if kind == "memory":
            return MemorySource(self.memory)
        self.index.advance(len(self.entries))
        return FileSource(self.log, self.index, len(self.entries))

    def wait_until_indexed(self) -> None:
        self.index.advance(len(self.entries))
        deadline = time.monotonic() + 20
        while self.index.text.indexed_to < len(self.entries):
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def page(
        self, kind: str, query: dict[str, Any], hears: Filter = everything, **limits: Any
    ) -> Page:
        return read_page(parse_query(query), Rights("bob", hears), self.source(kind), **limits)

    def close(self) -> None:
        self.index.stop()
        self.log.close()


def expected(log: RandomLog, query: dict[str, Any], hears: Filter, end: int) -> list[int]:
    """Return the positions that a query finds among the first `end` entries, oldest first."""
    found = []
    parsed = parse_query(query)
    wanted = parse(query.get("filter", {"all": []}))
    for position, entry in enumerate(log.entries[:end]):
        lineage = entry.lineage
        family = () if lineage is None else (lineage.id, *lineage.ancestors)
        if (
            wanted.matches(entry, lineage)
            and ("context" not in query or query["context"] in family)
            and (parsed.words is None or parsed.words.match(entry.text))
            and _within(log, position, query.get("after"), query.get("before"))
            and (
                entry.sender in ("bob", "system:gateway")
                or "bob" in (entry.to or ())
                or hears.matches(entry, lineage)
            )
        ):
            found.append(position)
    return found


def _within(log: RandomLog, position: int, after: Any, before: Any) -> bool:
    time = log.times[position]
    if isinstance(after, str) and position <= int(after[1:]):
        return False
    if isinstance(after, float) and time <= after:
        return False
    if isinstance(before, str) and position >= int(before[1:]):
        return False
    return not (isinstance(before, float) and time >= before)
