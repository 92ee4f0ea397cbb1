"""What a person sees of a pod: lines, with every context folded to one until it is opened.

Beside that one line stands only what waits for a decision.

No terminal in here: it takes envelopes and gives rows.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mcpp import ContextTree, Envelope, Kind, kinds
from mcpp.errors import DecodeError
from mcpp.filters import Filter
from mcpp.protocol import rpc
from mcpp.protocol.contexts import ContextTracker, Lineage
from mcpp.protocol.tree import ContextNode
from mcpp.session.session import Gap
from mcpp_agents.cli.display import clean, describe, one_line, progress_of, whole

_HIDDEN: Final = (kinds.NOTIFICATION, kinds.CONTEXT, kinds.FILTER_SET, kinds.WELCOME)
# At most twice as many are kept: then the older half is no longer shown.
KEPT_ENVELOPES: Final = 5000
_LOST: Final = "lost with the gateway's log"
# Nobody's message should push all others off the screen; opened it is shown whole.
_BRIEF_CHARACTERS: Final = 1000
_BRIEF_LINES: Final = 12
# A row that does not fit the screen cannot be scrolled through.
_ROW_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class Row:
    """A line: how far in it stands, who speaks, what it says, and what can be done with it.

    `key` is its own as long as it is shown: rows above it come and go.
    """

    key: str
    depth: int
    sender: str
    text: str
    style: str = ""
    opens: str | None = None  # the context or envelope that is opened and closed with this row
    proposal: str | None = None  # decided with this row
    is_heading: bool = False  # of a context: never longer than a line


@dataclass(slots=True)
class ShownProposal:
    """A proposal and what has become of it. Who speaks against it closes nothing (P-21)."""

    envelope: Envelope
    end: str = ""
    against: dict[str, None] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """How it ended, or that it is open, and who is against it so far."""
        against = f", rejected by {', '.join(self.against)}" if self.against else ""
        return self.end or f"open{against}"

    def waits_for(self, person: str) -> bool:
        """Tell whether a person has still to decide on it."""
        return not self.end and person not in self.against


@dataclass(frozen=True, slots=True, eq=False)
class _Notice:
    """Something told to this person alone."""

    text: str


_Entry = Envelope | ContextNode | _Notice


class Transcript:
    """A log as rows. Owns what is opened, the numbers of contexts and proposals, and the filter."""

    def __init__(self, me: str = "") -> None:
        self.me = me
        self.filter: Filter | None = None
        self._log: list[Envelope] = []
        self._opened: set[str] = set()
        self._numbers: dict[str, int] = {}
        self._begin()

    def _begin(self) -> None:
        self.proposals: dict[str, ShownProposal] = {}
        self._tree = ContextTree()
        self._placed: set[int] = set()  # the tree's roots that stand among the entries
        self._entries: list[_Entry] = []
        self._order: dict[str, int] = {}
        self._lineages = ContextTracker()
        self._lineage_of: dict[str, Lineage | None] = {}
        self._texts: dict[str, tuple[str, bool]] = {}

    def add(self, envelope: Envelope) -> None:
        """Take the next envelope of the log."""
        self._log.append(envelope)
        self._add(envelope)
        if len(self._log) > 2 * KEPT_ENVELOPES:
            del self._log[:KEPT_ENVELOPES]
            self._begin()
            for kept in self._log:
                self._add(kept)

    def _add(self, envelope: Envelope) -> None:
        self._lineage_of[envelope.id] = self._lineages.observe(envelope)
        self._order[envelope.id] = len(self._order)
        self._tree.add(envelope)
        if envelope.context is None:
            self._entries.append(envelope)
        else:
            # A context and the one above it: an envelope makes no more than these.
            for root in self._tree.roots[-2:]:
                if id(root) not in self._placed:
                    self._placed.add(id(root))
                    self._entries.append(root)
        self._note_proposal(envelope)

    def miss(self, gap: Gap) -> None:
        """Note that envelopes were missed here. A lost log takes with it whatever was open."""
        self.tell("The gateway has lost its log." if gap.lost_log else "Messages were missed here.")
        if not gap.lost_log:
            return
        for proposal in self.proposals.values():
            proposal.end = proposal.end or _LOST
        for node in self._tree:
            node.expired = True
        self._lineages = ContextTracker()
        self._log.clear()

    def tell(self, text: str) -> None:
        """Show something to this person alone, after what was said so far."""
        self._entries.append(_Notice(clean(text)))

    def toggle(self, id: str) -> None:
        """Open a context or an envelope, or fold it again."""
        self._opened ^= {id}

    def is_cut(self, envelope: Envelope) -> bool:
        """Tell whether only a part of an envelope is shown."""
        return envelope.id not in self._opened and self._brief(envelope)[1]

    def number(self, id: str) -> int:
        """Return the number by which a person names a context or a proposal."""
        return self._numbers.setdefault(id, len(self._numbers) + 1)

    def named(self, number: int) -> str | None:
        """Return the id behind a number."""
        return next((id for id, one in self._numbers.items() if one == number), None)

    def rows(self) -> list[Row]:
        """Return all rows, oldest first."""
        return [row for entry in self._entries for row in self._of(entry, 0)]

    def _of(self, entry: _Entry, depth: int) -> Iterator[Row]:
        if isinstance(entry, ContextNode):
            yield from self._of_context(entry, depth)
        elif isinstance(entry, _Notice):
            for place, line in enumerate(entry.text.split("\n")):
                yield Row(f"notice {id(entry)} {place}", depth, "", line, "class:notice")
        elif self._is_shown(entry):
            yield from self._of_envelope(entry, depth)

    def _of_context(self, node: ContextNode, depth: int) -> Iterator[Row]:
        if node.parent is not None and depth == 0:
            return  # it was given a parent later, and stands there
        below = [one for child, _ in node.walk() for one in child.envelopes]
        if not any(map(self._passes, below)):
            return
        is_open = node.id in self._opened
        who, *others = dict.fromkeys(one.sender for one in below)
        said = f"{len(below)} message{'' if len(below) == 1 else 's'}"
        more = f" with {', '.join(others)}" if others else ""
        head = f"{'▾' if is_open else '▸'} [{self.number(node.id)}] {node.type or 'context'}"
        # What matters first: a narrow window shows no more.
        text = one_line(f"{head} by {who} · {_outcome(node, below)} · {said}{more}")
        key = f"context {id(node)}"
        yield Row(key, depth, "", text, "class:context", opens=node.id, is_heading=True)
        if is_open:
            inside: list[_Entry] = [*node.envelopes, *node.children]
            for entry in sorted(inside, key=self._place):
                yield from self._of(entry, depth + 1)
            return
        # What waits for a person is never folded away.
        for one in below:
            if one.id in self.proposals and self.proposals[one.id].waits_for(self.me):
                yield from self._of(one, depth + 1)

    def _of_envelope(self, envelope: Envelope, depth: int) -> Iterator[Row]:
        kind = Kind.parse(envelope.kind)
        text, _ = self._brief(envelope)
        if envelope.id in self._opened:
            text = whole(envelope)
        proposal = self.proposals.get(envelope.id)
        if proposal is not None:
            text = f"◆ [{self.number(envelope.id)}] {proposal.state} — {text}"
        answered = envelope.correlation_id or ""
        if answered in self.proposals:
            text = f"on [{self.number(answered)}]: {text}"
        elif answered in self._tree:
            text = f"on [{self.number(answered)}] {self._tree[answered].type or 'context'}: {text}"
        if envelope.to and kind.family in (kinds.CHAT, kinds.REQUEST, kinds.PROPOSAL):
            text = f"→ {', '.join(envelope.to)}: {text}"
        style = f"class:{kind.family.replace('/', '-')}"
        for place, line in enumerate(_lines(text)):
            yield Row(
                f"{envelope.id} {place}",
                depth if place == 0 else depth + 1,
                envelope.sender if place == 0 else "",
                line,
                style,
                opens=envelope.id,
                proposal=None if proposal is None else envelope.id,
            )

    def _brief(self, envelope: Envelope) -> tuple[str, bool]:
        """Return what is shown of an envelope that is not opened, and whether that is a part."""
        known = self._texts.get(envelope.id)
        if known is None:
            # A person who approves has to have seen what.
            is_proposal = Kind.parse(envelope.kind).family == kinds.PROPOSAL
            text = describe(envelope, None) if is_proposal else describe(envelope)
            lines = text[:_BRIEF_CHARACTERS].split("\n")[:_BRIEF_LINES]
            brief = "\n".join(lines)
            is_cut = len(brief) < len(text)
            shown = f"{brief} … [Enter opens: {len(text)} characters]" if is_cut else text
            known = self._texts[envelope.id] = (shown, is_cut)
        return known

    def _place(self, entry: _Entry) -> int:
        if isinstance(entry, Envelope):
            return self._order[entry.id]
        assert isinstance(entry, ContextNode)
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
            with suppress(DecodeError):  # what nobody could fulfil waits for nobody
                rpc.read_proposal(envelope)
                self.proposals[envelope.id] = ShownProposal(envelope)
                self.number(envelope.id)
            return
        proposal = self.proposals.get(envelope.correlation_id or "")
        if proposal is None or proposal.end not in ("", _LOST):
            return
        if rpc.fulfils(envelope, proposal.envelope):
            proposal.end = f"approved by {envelope.sender}"
        elif family == kinds.REJECT:
            proposal.against[envelope.sender] = None
        elif family == kinds.WITHDRAW and envelope.sender == proposal.envelope.sender:
            proposal.end = "withdrawn"


def _outcome(node: ContextNode, below: list[Envelope]) -> str:
    """Return what came of a context, or how far it is."""
    if node.conclusion is not None:
        return describe(node.conclusion)
    if node.state == "open" and below and (progress := progress_of(below[-1])):
        return f"open · {progress}"
    return node.state


def _lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        for start in range(0, max(len(line), 1), _ROW_CHARACTERS):
            yield line[start : start + _ROW_CHARACTERS]
