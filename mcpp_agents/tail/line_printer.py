"""Printing envelopes: as lines, optionally drawn as a tree of contexts, or as JSON."""

import sys

from mcpp import Context, Envelope, Pod, encode
from mcpp.protocol.contexts import ContextTracker, read_context_change
from mcpp_agents.cli.display import Palette, json_line, one_line


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

    def learn(self, pod: Pod) -> None:
        """Learn the contexts that existed before we joined."""
        self._contexts.reset(pod.contexts.values())

    def print(self, envelope: Envelope) -> None:
        """Print the next envelope of the log."""
        sys.stdout.write("\n".join(self.render(envelope)) + "\n")
        sys.stdout.flush()

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


def _metadata(context: Context) -> str:
    facts = [
        f"{name}={value}"
        for name, value in (context.metadata or {}).items()
        if isinstance(value, str | int | float) and name != "started_at"
    ]
    return f" ({one_line(', '.join(facts), 80)})" if facts else ""
