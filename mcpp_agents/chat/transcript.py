"""The chat's view of a log as rows of text, independent of any terminal.

A context is one row until it is opened. Below a folded context, only the proposals that this person
still has to decide are shown.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from mcpp import ContextNode, ContextTree, DecodeError, Envelope, Gap, Kind, kinds
from mcpp.buffers import MAX_LOG_BYTES, BoundedQueue
from mcpp.filters import Filter
from mcpp.live import LiveTexts
from mcpp.protocol import rpc
from mcpp.protocol.contexts import Lineage
from mcpp_agents.cli.display import (
    clean,
    describe,
    describe_fully,
    one_line,
    preview_lines,
    progress_of,
)

_HIDDEN: Final = (
    kinds.NOTIFICATION,
    kinds.CONTEXT,
    kinds.FILTER_SET,
    kinds.WELCOME,
    kinds.UPDATE,
)
# At twice this number, or at `MAX_LOG_BYTES`, the older half is dropped.
KEPT_ENVELOPES: Final = 5000
_LOST: Final = "lost with the gateway's log"
# A long message is truncated until it is opened, so that it does not fill the screen.
_BRIEF_CHARACTERS: Final = 1000
_BRIEF_LINES: Final = 12
# A longer row might not fit on the screen, and could not be scrolled.
_ROW_CHARACTERS: Final = 500


@dataclass(frozen=True, slots=True)
class TranscriptRow:
    """A row of the list: indentation, sender, text, and what can be done with it.

    `key` identifies the row while others are added and removed.
    """

    key: str
    depth: int
    sender: str
    text: str
    style: str = ""
    opens: str | None = None  # the context or envelope that this row opens and folds
    proposal: str | None = None  # the proposal that this row belongs to
    is_heading: bool = False  # the heading of a context, always a single line


@dataclass(slots=True)
class ShownProposal:
    """A proposal and its state. A rejection does not close it (P-21)."""

    envelope: Envelope
    end: str = ""
    rejected_by: dict[str, None] = field(default_factory=dict)

    @property
    def state(self) -> str:
        """How it ended, or that it is open and who has rejected it so far."""
        rejected = f", rejected by {', '.join(self.rejected_by)}" if self.rejected_by else ""
        return self.end or f"open{rejected}"

    def waits_for(self, person: str) -> bool:
        """Return whether this person still has to decide on it."""
        return not self.end and person not in self.rejected_by


@dataclass(frozen=True, slots=True, eq=False)
class _Notice:
    """A text from the chat itself, shown only to this person."""

    text: str


_Entry = Envelope | ContextNode | _Notice


class Transcript:
    """A log as rows. Owns the opened items, the numbers of contexts and proposals, the filter."""

    def __init__(self, me: str = "") -> None:
        self.me = me
        self.filter: Filter | None = None
        self._log = BoundedQueue[Envelope](2 * KEPT_ENVELOPES, MAX_LOG_BYTES)
        self._opened: set[str] = set()
        self._numbers: dict[str, int] = {}
        self.live = LiveTexts()
        self._reset()

    def _reset(self) -> None:
        self.proposals: dict[str, ShownProposal] = {}
        self._tree = ContextTree()
        self._listed_roots: set[int] = set()  # the tree's roots that are among the entries
        self._entries: list[_Entry] = []
        self._order: dict[str, int] = {}
        # Contexts of logs that the gateway has lost: all of them, and the latest of each id.
        self._lost_nodes: set[ContextNode] = set()
        self._lost_by_id: dict[str, ContextNode] = {}
        self._lineage_of: dict[str, Lineage | None] = {}
        self._texts: dict[str, tuple[str, bool]] = {}

    def add(self, envelope: Envelope) -> None:
        """Add the next envelope of the log."""
        self.live.observe(envelope, 0.0)
        self._log.put_anyway(envelope, envelope.size_bytes)
        self._add(envelope)
        if self._log.is_filled(1):
            self._log.shrink(1 / 2)
            self._reset()
            for kept in self._log:
                self._add(kept)

    def add_part(self, part: Envelope, now: float) -> None:
        """Add a live part, which is in no log."""
        self.live.observe(part, now)

    def _add(self, envelope: Envelope) -> None:
        self._order[envelope.id] = len(self._order)
        self._tree.add(envelope)
        self._lineage_of[envelope.id] = self._lineage(envelope)
        if envelope.context is None:
            self._entries.append(envelope)
        else:
            # An envelope creates at most two roots: its context and that context's parent.
            for root in self._tree.roots[-2:]:
                if id(root) not in self._listed_roots:
                    self._listed_roots.add(id(root))
                    self._entries.append(root)
        self._track_proposal(envelope)

    def _lineage(self, envelope: Envelope) -> Lineage | None:
        if envelope.context is None:
            return None
        node = self._tree[envelope.context.id]
        ancestors = []
        above = node.parent
        while above is not None:
            ancestors.append(above.id)
            above = above.parent
        return Lineage(node.id, node.type, tuple(ancestors))

    def add_gap(self, gap: Gap) -> None:
        """Note that envelopes were missed. If the log was lost, so are open proposals."""
        lost = "The gateway has lost its log."
        self.notify(lost if gap.lost_log else "Some messages were missed here.")
        if not gap.lost_log:
            return
        for proposal in self.proposals.values():
            proposal.end = proposal.end or _LOST
        # The new log may use the same ids for other contexts.
        self._lost_nodes.update(self._tree)
        self._lost_by_id |= {node.id: node for node in self._tree}
        self._tree = ContextTree()
        self._log.clear()

    def notify(self, text: str) -> None:
        """Show a text to this person only, after the messages so far."""
        self._entries.append(_Notice(clean(text)))

    def toggle(self, id: str) -> None:
        """Open a context or an envelope, or fold it if it is open."""
        self._opened ^= {id}

    def is_truncated(self, envelope: Envelope) -> bool:
        """Return whether only a part of an envelope is shown."""
        return envelope.id not in self._opened and self._brief(envelope)[1]

    def number(self, id: str) -> int:
        """Return the number that stands for a context or a proposal in commands."""
        return self._numbers.setdefault(id, len(self._numbers) + 1)

    def find(self, number: int) -> str | None:
        """Return the id that a number stands for."""
        return next((id for id, one in self._numbers.items() if one == number), None)

    def rows(self) -> list[TranscriptRow]:
        """Return all rows, oldest first."""
        logged = [row for entry in self._entries for row in self._rows_of(entry, 0)]
        return [*logged, *self._live_rows()]

    def _live_rows(self) -> Iterator[TranscriptRow]:
        """Yield the texts that others are writing, until the messages replace them."""
        for text in self.live if self.filter is None else ():
            shown = clean(text.text[-_BRIEF_CHARACTERS:])
            for place, line in enumerate(f"{shown}▍".split("\n")[-_BRIEF_LINES:]):
                key = f"live {text.sender} {text.id} {place}"
                sender = text.sender if place == 0 else ""
                yield TranscriptRow(key, 0 if place == 0 else 1, sender, line, "class:live")

    def _rows_of(self, entry: _Entry, depth: int) -> Iterator[TranscriptRow]:
        if isinstance(entry, ContextNode):
            yield from self._context_rows(entry, depth)
        elif isinstance(entry, _Notice):
            for place, line in enumerate(entry.text.split("\n")):
                yield TranscriptRow(f"notice {id(entry)} {place}", depth, "", line, "class:notice")
        elif self._is_shown(entry):
            yield from self._envelope_rows(entry, depth)

    def _context_rows(self, node: ContextNode, depth: int) -> Iterator[TranscriptRow]:
        if node.parent is not None and depth == 0:
            return  # it got a parent later, and is listed below that
        below = [one for child, _ in node.walk() for one in child.envelopes]
        if not any(map(self._passes, below)):
            return
        is_open = node.id in self._opened
        creator, *others = dict.fromkeys(one.sender for one in below)
        count = f"{len(below)} message{'' if len(below) == 1 else 's'}"
        more = f" with {', '.join(others)}" if others else ""
        head = f"{'▾' if is_open else '▸'} [{self.number(node.id)}] {_kind_and_title(node)}"
        # The outcome before the rest, which a narrow window cuts off.
        text = one_line(f"{head} by {creator} · {self._outcome(node, below)} · {count}{more}")
        key = f"context {id(node)}"
        yield TranscriptRow(key, depth, "", text, "class:context", opens=node.id, is_heading=True)
        if is_open:
            inside: list[_Entry] = [*node.envelopes, *node.children]
            for entry in sorted(inside, key=self._position):
                yield from self._rows_of(entry, depth + 1)
            return
        # Proposals that this person has to decide are visible even in a folded context.
        for one in below:
            if one.id in self.proposals and self.proposals[one.id].waits_for(self.me):
                yield from self._rows_of(one, depth + 1)

    def _envelope_rows(self, envelope: Envelope, depth: int) -> Iterator[TranscriptRow]:
        kind = Kind.parse(envelope.kind)
        text, _ = self._brief(envelope)
        if envelope.id in self._opened:
            text = describe_fully(envelope)
        proposal = self.proposals.get(envelope.id)
        if proposal is not None:
            text = f"◆ [{self.number(envelope.id)}] {proposal.state} — {text}"
        answered = envelope.correlation_id or ""
        if answered in self.proposals:
            text = f"on [{self.number(answered)}]: {text}"
        elif node := self._find_context(answered):
            text = f"on [{self.number(answered)}] {_kind_and_title(node)}: {text}"
        if envelope.to and kind.family in (kinds.CHAT, kinds.REQUEST, kinds.PROPOSAL):
            text = f"→ {', '.join(envelope.to)}: {text}"
        style = f"class:{kind.family.replace('/', '-')}"
        for place, line in enumerate(_lines(text)):
            yield TranscriptRow(
                f"{envelope.id} {place}",
                depth if place == 0 else depth + 1,
                envelope.sender if place == 0 else "",
                line,
                style,
                opens=envelope.id,
                proposal=None if proposal is None else envelope.id,
            )

    def _outcome(self, node: ContextNode, below: list[Envelope]) -> str:
        """Return a context's conclusion, or its state and latest progress."""
        if node.conclusion is not None:
            return describe(node.conclusion)
        state = "expired" if node in self._lost_nodes else node.state
        if state != "open":
            return state
        steps = "" if node.progress is None else f" · {node.progress}"
        progress = progress_of(below[-1]) if below else None
        return f"open{steps}{'' if progress is None else f' · {progress}'}"

    def _find_context(self, id: str) -> ContextNode | None:
        return self._tree[id] if id in self._tree else self._lost_by_id.get(id)

    def _brief(self, envelope: Envelope) -> tuple[str, bool]:
        """Return the text of an envelope that is not opened, and whether it is truncated."""
        known = self._texts.get(envelope.id)
        if known is None:
            # All arguments of a proposal are shown: a person must see what they approve.
            is_proposal = Kind.parse(envelope.kind).family == kinds.PROPOSAL
            text = describe(envelope, None) if is_proposal else describe(envelope)
            if is_proposal:
                text = "\n".join([text, *preview_lines(envelope)])
            lines = text[:_BRIEF_CHARACTERS].split("\n")[:_BRIEF_LINES]
            brief = "\n".join(lines)
            is_truncated = len(brief) < len(text)
            shown = f"{brief} … [Enter opens: {len(text)} characters]" if is_truncated else text
            known = self._texts[envelope.id] = (shown, is_truncated)
        return known

    def _position(self, entry: _Entry) -> int:
        if isinstance(entry, Envelope):
            return self._order[entry.id]
        assert isinstance(entry, ContextNode)
        positions = [self._order[one.id] for node, _ in entry.walk() for one in node.envelopes]
        return min(positions, default=0)

    def _is_shown(self, envelope: Envelope) -> bool:
        kind = Kind.parse(envelope.kind)
        if kind.family in _HIDDEN or kind.method == "tools/list":
            return False
        return self._passes(envelope)

    def _passes(self, envelope: Envelope) -> bool:
        return self.filter is None or self.filter.matches(envelope, self._lineage_of[envelope.id])

    def _track_proposal(self, envelope: Envelope) -> None:
        family = Kind.parse(envelope.kind).family
        if family == kinds.PROPOSAL:
            with suppress(DecodeError):  # an invalid proposal cannot be decided
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
            proposal.rejected_by[envelope.sender] = None
        elif family == kinds.WITHDRAW and envelope.sender == proposal.envelope.sender:
            proposal.end = "withdrawn"


def _kind_and_title(node: ContextNode) -> str:
    kind = node.type or "context"
    return kind if node.title is None else f"{kind} “{clean(node.title)}”"


def _lines(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        for start in range(0, max(len(line), 1), _ROW_CHARACTERS):
            yield line[start : start + _ROW_CHARACTERS]
