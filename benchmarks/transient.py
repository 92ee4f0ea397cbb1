"""Savings by collapsing: fetch-and-store loops with and without it, in o200k tokens.

    python -m benchmarks.transient

Before each model call a prompt is built from the log so far. `final` is the size of the last one,
`input` the sum of all, `cost` that sum with a prompt cache: tokens that the previous prompt already
contained cost 0.1, others 1.25. Percentages compare with the same log without collapsing.

Times are CPU times of the process, the best of five.
"""

import gc
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mcpp import Envelope, new_context, new_envelope, tokens
from mcpp.prompts import CachePolicy, ContextSummary, Prompt, PromptBuilder
from mcpp.prompts.blocks import Block, block_tokens
from mcpp.transient import Workflow, consumed, mark_by_rule
from mcpp_agents.memory.bus.listener import ContextListener
from mcpp_agents.memory.bus.summaries.rolling import RollingPolicy, RollingSummary

TS = "2026-01-01T00:00:00Z"
NEVER = CachePolicy(further_calls=0)
READ, WRITE = 0.1, 1.25
WORDS = [
    *("analysis", "client", "meeting", "budget", "review", "draft", "invoice", "design"),
    *("workshop", "payment", "travel", "support", "research", "planning", "migration"),
    *("security", "report", "training", "release", "customer", "website", "prototype"),
]
WORKFLOW = Workflow(
    [
        {"order": 1, "title": "Read the brief"},
        {
            "order": 2,
            "title": "Fetch activities",
            "tool": "search_records",
            "loopGroup": "fetch-analyze",
            "contextHint": {"lifecycle": "transient", "consumedBy": "store_analysis_memory"},
        },
        {
            "order": 3,
            "title": "Store what you found",
            "tool": "store_analysis_memory",
            "loopGroup": "fetch-analyze",
        },
    ]
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A loop over pages of records, with or without messages of peers in between."""

    name: str
    records: int
    page_size: int
    peers: int = 0
    fetch_first: bool = False

    @property
    def pages(self) -> int:
        return -(-self.records // self.page_size)


SCENARIOS = [
    Scenario(f"{name}, {'fetch all, then store' if first else 'sequential'}", *sizes, first)
    for name, sizes in {
        "source: 132 records, 9 pages": (132, 15, 0),
        "the same, 3 peer messages a page": (132, 15, 3),
        "20 × 50 records": (1000, 50, 0),
        "40 × 50 records": (2000, 50, 0),
    }.items()
    for first in (False, True)
]


@dataclass(frozen=True, slots=True)
class Figures:
    """Token figures of a log over all model calls."""

    final: int
    input: int
    cost: float


class _Log:
    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []

    def send(self, kind: str, payload: Any, sender: str, **more: Any) -> str:
        number = f"m{len(self.envelopes)}"
        envelope = new_envelope(kind, payload, sender=sender, id=number, ts=TS, **more)
        self.envelopes.append(envelope)
        return number

    def run(self, tool: str, arguments: dict[str, Any], result: dict[str, Any]) -> None:
        params = {"name": tool, "arguments": arguments}
        request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        call = self.send(f"mcp/request:tools/call:{tool}", request, "analyst", to=["crm"])
        response = {"jsonrpc": "2.0", "id": call, "result": result}
        kind = f"mcp/response:tools/call:{tool}"
        self.send(kind, response, "crm", to=["analyst"], correlation_id=call)


def write_log(scenario: Scenario) -> list[Envelope]:
    """Return a scenario's log, deterministically."""
    rng = random.Random(132)
    log = _Log()
    log.send("chat", {"text": "Please reclassify all activities of this year."}, "boss")
    log.run("get_workflow_step", {"order": 2}, WORKFLOW.get_workflow_step(2))
    pages = range(1, scenario.pages + 1)
    for page in pages:
        log.run("search_records", {"type": "activity", "page": page}, _page(scenario, page, rng))
        if not scenario.fetch_first:
            _store(log, scenario, page, rng)
    for page in pages if scenario.fetch_first else ():
        _store(log, scenario, page, rng)
    log.send("chat", {"text": "All activities have been reclassified."}, "analyst")
    return log.envelopes


def _page(scenario: Scenario, page: int, rng: random.Random) -> dict[str, Any]:
    first = 72 + (page - 1) * scenario.page_size
    last = min(first + scenario.page_size, 72 + scenario.records)
    value = {
        "records": [_record(number, rng) for number in range(first, last)],
        "page": page,
        "pages": scenario.pages,
        "total": scenario.records,
    }
    text = json.dumps(value, separators=(",", ":"))
    result = {"content": [{"type": "text", "text": text}], "structuredContent": value}
    return mark_by_rule(result, "activity")


def _record(number: int, rng: random.Random) -> dict[str, Any]:
    return {
        "id": number,
        "title": " ".join(rng.choices(WORDS, k=4)).capitalize(),
        "description": " ".join(rng.choices(WORDS, k=16)).capitalize() + ".",
        "date": f"2025-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
        "minutes": rng.randrange(15, 480, 15),
        "project": f"P-{rng.randint(100, 999)}",
        "category": rng.choice(WORDS),
        "billable": rng.random() < 0.5,
    }


def _store(log: _Log, scenario: Scenario, page: int, rng: random.Random) -> None:
    moved, words = rng.randint(2, 7), " ".join(rng.choices(WORDS, k=12))
    finding = f"Page {page}: {moved} activities to Web Dev, {words}."
    done = {"content": [{"type": "text", "text": f"Stored analysis finding {page}."}]}
    log.run("store_analysis_memory", {"finding": finding}, consumed(done))
    for peer in range(scenario.peers):
        text = f"Note {page}.{peer}: {' '.join(rng.choices(WORDS, k=14))}."
        log.send("chat", {"text": text}, "peer")


def measure(log: list[Envelope], cache: CachePolicy | None) -> Figures:
    """Build the prompt of every model call in the log, and count tokens."""
    count = _counter()
    builder = PromptBuilder("analyst", cache=cache, counter=count)
    before: list[tuple[str, Block]] = []
    final = total = 0
    cost = 0.0
    for envelope in log:
        if envelope.sender == "analyst":
            blocks = list(_blocks(builder.build()))
            prices = [count(builder.system), *(block_tokens(block, count) for _, block in blocks)]
            same = 0
            while same < min(len(before), len(blocks)) and before[same] == blocks[same]:
                same += 1
            cached = sum(prices[: same + 1]) if before else 0
            final = sum(prices)
            total += final
            cost += READ * cached + WRITE * (final - cached)
            before = blocks
        builder.add(envelope)
    return Figures(final, total, cost)


def compare(scenario: Scenario) -> tuple[Figures, Figures]:
    """Return the figures of a scenario without and with collapsing."""
    log = write_log(scenario)
    return measure(log, NEVER), measure(log, CachePolicy())


def row(name: str, without: Figures, within: Figures) -> str:
    """Return a line of the table in `docs/prompts.md`."""
    line = (
        f"| {name} | {without.final:,} → {within.final:,} "
        f"| {within.final / without.final - 1:+.0%} "
        f"| {without.input:,} → {within.input:,} | {within.input / without.input - 1:+.0%} "
        f"| {within.cost / without.cost - 1:+.0%} |"
    )
    return line.replace("| -", "| −")


def open_context(messages: int = 500) -> tuple[int, int]:
    """Return the tokens of a prompt over an open context, without and with memory's summary."""
    rng = random.Random(500)
    log, listener = _Log(), ContextListener("bench", rolling=RollingPolicy())
    context = new_context("reasoning", id="work")
    summaries: dict[str, ContextSummary] = {}
    for number in range(messages):
        text = f"Point {number}: {' '.join(rng.choices(WORDS, k=20))}. {rng.choice(WORDS)} "
        text += f"needs {' '.join(rng.choices(WORDS, k=15))}."
        log.send("reflection", {"thought": text}, rng.choice(("ann", "ben")), context=context)
        listener.receive(log.envelopes[-1])
        for summary in listener.take_summaries():
            if isinstance(summary, RollingSummary):
                summaries[summary.context] = summary.for_prompts()
    built = (
        PromptBuilder("analyst", contexts="fold", counter=_counter(), summaries=given)
        for given in ((), summaries.values())
    )
    without, within = (builder.build(log.envelopes).tokens for builder in built)
    return without, within


def open_context_row(without: int, within: int) -> str:
    """Return the sentence in `docs/prompts.md`."""
    return (
        f"{without:,} tokens without the summary, {within:,} with it (−{1 - within / without:.0%})."
    )


def _blocks(prompt: Prompt) -> Iterator[tuple[str, Block]]:
    for message in prompt.messages:
        for block in message.blocks:
            yield message.role, block


@lru_cache(maxsize=1)
def _counter() -> Callable[[str], int]:
    return lru_cache(maxsize=100_000)(tokens.exact())


def time_building(length: int) -> tuple[float, float, float]:
    """Return milliseconds to build without and with a budget, and microseconds for one `add`."""
    log = busy_log(length)
    gc.collect()
    gc.freeze()  # a full collection during the measurement should not traverse the log
    plain = PromptBuilder("analyst")
    tight = PromptBuilder("analyst", token_budget=100_000)
    without = _best(lambda: plain.build(_with_unparsed_payloads(log)))
    within = _best(lambda: tight.build(_with_unparsed_payloads(log)))
    for envelope in log:
        plain.add(envelope)
    more = busy_log(length + 2000)[length:]
    start = time.process_time()
    for envelope in more:
        plain.add(envelope)
    return without, within, (time.process_time() - start) / len(more) * 1e6


def time_folding(length: int) -> tuple[float, float]:
    """Return milliseconds to build from concluded contexts: folded, and with a budget instead."""
    log = contexts_log(length)
    gc.collect()
    gc.freeze()
    folding = PromptBuilder("analyst", contexts="fold")
    tight = PromptBuilder("analyst", token_budget=20_000)
    return _best(lambda: folding.build(_with_unparsed_payloads(log))), _best(
        lambda: tight.build(_with_unparsed_payloads(log))
    )


def contexts_log(length: int) -> list[Envelope]:
    """Return a log of small contexts with three reflections and a conclusion each."""
    rng = random.Random(1)
    log = _Log()
    while len(log.envelopes) < length - 1:
        place, kind = len(log.envelopes) // 4, len(log.envelopes) % 4
        text = " ".join(rng.choices(WORDS, k=12))
        context = new_context("reasoning", id=f"c{place}")
        if kind < 3:
            log.send("reflection", {"thought": text}, "peer", context=context)
        else:
            log.send("conclusion", {"text": text}, "peer", context=context)
    log.send("chat", {"text": "Thank you."}, "analyst")
    return log.envelopes


def busy_log(length: int) -> list[Envelope]:
    """Return a log of chat, tool calls and pages as in a busy pod."""
    rng = random.Random(1)
    log = _Log()
    scenario = Scenario("", 10**6, 5)
    log.run("get_workflow_step", {"order": 2}, WORKFLOW.get_workflow_step(2))
    page = 0
    while len(log.envelopes) < length:
        page += 1
        if page % 10 == 0:
            log.run("search_records", {"page": page}, _page(scenario, page, rng))
            _store(log, scenario, page, rng)
        text = " ".join(rng.choices(WORDS, k=24))
        log.send("chat", {"text": text}, rng.choice(("boss", "peer", "analyst")))
    return log.envelopes[:length]


def _with_unparsed_payloads(log: list[Envelope]) -> list[Envelope]:
    """Return the log as just received: with payloads not parsed yet."""
    for envelope in log:
        envelope.__dict__.pop("payload", None)
    return log


def _best(run: Callable[[], object], times: int = 5) -> float:
    def once() -> float:
        start = time.process_time()
        run()
        return (time.process_time() - start) * 1e3

    return min(once() for _ in range(times))


def run() -> None:
    print("| scenario | final | | input | | cost with cache |\n|---|---|---|---|---|---|")
    for scenario in SCENARIOS:
        print(row(scenario.name, *compare(scenario)))
    print("\nOpen context of 500 messages:", open_context_row(*open_context()))
    print("\n| envelopes | build | with a budget | one more `add` |\n|---|---|---|---|")
    for length in (100, 1000, 10_000):
        without_budget, within_budget, add = time_building(length)
        print(f"| {length:,} | {without_budget:.1f} ms | {within_budget:.1f} ms | {add:.1f} µs |")
    folded, within_budget = time_folding(10_000)
    print(
        f"\n10,000 in small contexts: folded {folded:.1f} ms, with a budget {within_budget:.1f} ms"
    )


if __name__ == "__main__":
    run()
