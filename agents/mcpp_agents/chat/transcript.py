"""What a person sees of a pod: lines, with every context folded to one until it is opened.

No terminal in here: it takes envelopes and gives rows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mcpp import ContextTree, Envelope, Kind, kinds
from mcpp.contexts import Lineage, Lineages
from mcpp.filters import Filter
from mcpp.tree import ContextNode
from mcpp_agents.display import describe, one_line

_HIDDEN: Final = (kinds.NOTIFICATION, kinds.CONTEXT, kinds.FILTER_SET, kinds.WELCOME)
# Beyond this many the oldest part of the log is no longer shown.
KEPT_ENVELOPES: Final = 5000


@dataclass(frozen=True, slots=True)
class Row:
    """A line: how far in it stands, who speaks, what it says, and what can be done with it."""

    depth: int
    sender: str
    text: str
    style: str = ""
    context: str | None = None  # opened and closed with this row
    proposal: str | None = None  # decided with this row


@dataclass(slots=True)
class Proposal:
    """A proposal and what has become of it."""

    envelope: Envelope
    state: str = "open"


class Transcript:
    """A log as rows. Owns what is opened, the numbers of contexts and proposals, and the filter."""

    def __init__(self) -> None:
        self.filter: Filter | None = None
        self.proposals: dict[str, Proposal] = {}
        self._tree = ContextTree()
        self._entries: list[Envelope | ContextNode] = []
        self._order: dict[str, int] = {}
        self._lineages = Lineages()
        self._lineage_of: dict[str, Lineage | None] = {}
        self._opened: set[str] = set()
        self._numbers: dict[str, int] = {}

    def add(self, envelope: Envelope) -> None:
        """Take the next envelope of the log."""
        self._lineage_of[envelope.id] = self._lineages.observe(envelope.context)
        self._order[envelope.id] = len(self._order)
        known = set(map(id, self._tree.roots))
        self._tree.add(envelope)
        self._entries += [root for root in self._tree.roots if id(root) not in known]
        if envelope.context is None:
            self._entries.append(envelope)
        self._note_proposal(envelope)
        if len(self._entries) > KEPT_ENVELOPES:
            del self._entries[0]

    def toggle(self, context: str) -> None:
        """Open a context, or fold it again."""
        self._opened ^= {context}

    def number(self, id: str) -> int:
        """Return the number by which a person names a context or a proposal."""
        return self._numbers.setdefault(id, len(self._numbers) + 1)

    def named(self, number: int) -> str | None:
        """Return the id behind a number."""
        return next((id for id, one in self._numbers.items() if one == number), None)

    def rows(self) -> list[Row]:
        """Return all rows, oldest first."""
        return [row for entry in self._entries for row in self._of(entry, 0)]

    def _of(self, entry: Envelope | ContextNode, depth: int) -> Iterator[Row]:
        if isinstance(entry, ContextNode):
            yield from self._of_context(entry, depth)
        elif self._is_shown(entry):
            yield from self._of_envelope(entry, depth)

    def _of_context(self, node: ContextNode, depth: int) -> Iterator[Row]:
        if node.parent is not None and depth == 0:
            return  # it was given a parent later, and stands there
        below = [one for child, _ in node.walk() for one in child.envelopes]
        if not any(map(self._passes, below)):
            return
        is_open = node.id in self._opened
        who = ", ".join(dict.fromkeys(one.sender for one in below))
        said = f"{len(below)} message{'' if len(below) == 1 else 's'}"
        came = "" if node.conclusion is None else f" · {describe(node.conclusion)}"
        head = f"{'▾' if is_open else '▸'} [{self.number(node.id)}] {node.type or 'context'}"
        text = one_line(f"{head} by {who} · {said}{came or f' · {node.state}'}")
        yield Row(depth, "", text, "class:context", context=node.id)
        if is_open:
            inside: list[Envelope | ContextNode] = [*node.envelopes, *node.children]
            for entry in sorted(inside, key=self._place):
                yield from self._of(entry, depth + 1)

    def _of_envelope(self, envelope: Envelope, depth: int) -> Iterator[Row]:
        kind = Kind.parse(envelope.kind)
        text = describe(envelope)
        proposal = self.proposals.get(envelope.id)
        if proposal is not None:
            text = f"◆ [{self.number(envelope.id)}] {text} — {proposal.state}"
        if envelope.to and kind.family in (kinds.CHAT, kinds.REQUEST, kinds.PROPOSAL):
            text = f"→ {', '.join(envelope.to)}: {text}"
        style = f"class:{kind.family.replace('/', '-')}"
        first, *rest = text.split("\n")
        yield Row(depth, envelope.sender, first, style, proposal=envelope.id if proposal else None)
        for line in rest:
            yield Row(depth + 1, "", line, style)

    def _place(self, entry: Envelope | ContextNode) -> int:
        if isinstance(entry, Envelope):
            return self._order[entry.id]
        places = [self._order[one.id] for node, _ in entry.walk() for one in node.envelopes]
        return min(places, default=0)

    def _is_shown(self, envelope: Envelope) -> bool:
        kind = Kind.parse(envelope.kind)
        if kind.family in _HIDDEN or kind.method == "tools/list":
            return False
        return self._passes(envelope)

    def _passes(self, envelope: Envelope) -> bool:
        return self.filter is None or self.filter.matches(envelope, self._lineage_of[envelope.id])

    def _note_proposal(self, envelope: Envelope) -> None:
        family = Kind.parse(envelope.kind).family
        if family == kinds.PROPOSAL:
            self.proposals[envelope.id] = Proposal(envelope)
            self.number(envelope.id)
            return
        proposal = self.proposals.get(envelope.correlation_id or "")
        if proposal is None or proposal.state.startswith(("approved", "withdrawn")):
            return
        if family == kinds.REQUEST:
            proposal.state = f"approved by {envelope.sender}"
        elif family == kinds.REJECT:
            proposal.state = f"rejected by {envelope.sender}"
        elif family == kinds.WITHDRAW and envelope.sender == proposal.envelope.sender:
            proposal.state = "withdrawn"
