"""The report on a prompt: its size, and what was folded, collapsed, cut and left out."""

from collections import Counter
from collections.abc import Iterator

from mcpp import HistoryMessage
from mcpp.prompts import Prompt


def summarize(prompt: Prompt, viewer: str, log: list[HistoryMessage], budget: int) -> Iterator[str]:
    """Yield the lines of a summary."""
    report = prompt.report
    last = log[-1]
    yield f"what {viewer} sees at {last.id}, position {last.position}, of {len(log):,} messages"
    tokens = f"{report.tokens_after:,} tokens of {budget:,}"
    if report.tokens_before > report.tokens_after:
        tokens += f"; {report.tokens_before:,} before it was reduced"
    yield tokens
    for title, changes in (("reduced", report.changed), ("left out", report.left_out)):
        reasons = Counter(one.reason for one in changes)
        if reasons:
            counts = (f"{reason}: {count:,}" for reason, count in reasons.most_common())
            yield f"{title}: {', '.join(counts)}"


def detail(prompt: Prompt) -> Iterator[str]:
    """Yield a line for every envelope that is reduced or left out, with the reason."""
    for changed in prompt.report.changed:
        yield f"{changed.id} reduced, {changed.reason} (handle {changed.handle})"
    for left_out in prompt.report.left_out:
        yield f"{left_out.id} left out, {left_out.reason}"
