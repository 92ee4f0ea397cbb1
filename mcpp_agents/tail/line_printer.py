"""Printing envelopes: as lines, optionally drawn as a tree of contexts, or as JSON."""

import sys
from shutil import get_terminal_size
from time import monotonic
from typing import Final
from unicodedata import east_asian_width

from mcpp import Context, Envelope, Pod, encode
from mcpp.kinds import is_live
from mcpp.live import LiveTexts
from mcpp.protocol.contexts import ContextTracker, read_context_change
from mcpp_agents.cli.display import Palette, json_line, one_line

_SHOWN: Final = 500  # characters of a text that is being written


def print_json(envelope: Envelope) -> None:
    """Print an envelope as one line of compact JSON, whatever its sender wrote (P-30)."""
    sys.stdout.write(json_line(encode(envelope)) + "\n")
    sys.stdout.flush()


class LinePrinter:
    """Prints envelopes as lines. Owns a context tracker and the set of branches drawn."""

    def __init__(self, palette: Palette, *, tree: bool = False) -> None:
        self._palette = palette
        self._tree = tree
        self._contexts = ContextTracker()
        self._drawn: set[str] = set()
        self._texts = LiveTexts()
        self._is_writing = False  # whether the last line is what is being written

    def learn(self, pod: Pod) -> None:
        """Learn the contexts that existed before we joined."""
        self._contexts.reset(pod.contexts.values())

    def print(self, envelope: Envelope) -> None:
        """Print the next envelope of the log, or show the last line of what is being written."""
        self._texts.expire(monotonic())
        self._texts.observe(envelope, monotonic())
        lines = [] if is_live(envelope.kind) else self.render(envelope)
        erased = "\r\x1b[K" if self._is_writing else ""
        written = self._last_line()
        self._is_writing = bool(written)
        printed = "".join(line + "\n" for line in lines)
        sys.stdout.write(f"{erased}{printed}{written}")
        sys.stdout.flush()

    def _last_line(self) -> str:
        """Return what is being written, newest last, as far as it fits into one line."""
        shown = [f"{text.sender} ▍{one_line(text.text[-_SHOWN:], _SHOWN)}" for text in self._texts]
        columns = get_terminal_size().columns - 1
        return self._palette.paint(_end_of("   ".join(shown), columns), 2)

    def render(self, envelope: Envelope) -> list[str]:
        """Return the lines for the next envelope of the log."""
        lineage = self._contexts.observe(envelope)
        topic = self._contexts.find(envelope.correlation_id or "")
        if change := read_context_change(envelope):
            self._drawn.difference_update(context.id for context in change.contexts)
        if not self._tree or lineage is None:
            return [self._palette.line(envelope, lineage=lineage, topic=topic)]
        depth = len(lineage.ancestors) + 1
        lines = []
        if lineage.id not in self._drawn:
            self._drawn.add(lineage.id)
            about = "" if envelope.context is None else _metadata(envelope.context)
            indent = " " * 9 + "│ " * (depth - 1)
            head = f"{indent}┌ {lineage.type or 'context'} {lineage.id}{about}"
            lines.append(self._palette.paint(head, 2))
        return [*lines, self._palette.line(envelope, lineage=lineage, topic=topic, depth=depth)]


def _end_of(text: str, columns: int) -> str:
    """Return the end of a line that fits into a number of columns."""
    used = 0
    for place in range(len(text) - 1, -1, -1):
        used += 2 if east_asian_width(text[place]) in "WF" else 1
        if used > columns:
            return text[place + 1 :]
    return text


def _metadata(context: Context) -> str:
    facts = [
        f"{name}={value}"
        for name, value in (context.metadata or {}).items()
        if isinstance(value, str | int | float) and name != "started_at"
    ]
    return f" ({one_line(', '.join(facts), 80)})" if facts else ""
