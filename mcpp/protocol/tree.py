"""A log grouped by context, as a tree.

Every envelope is in exactly one place, for any log: where no gateway has checked it, a parent that
would close a cycle is ignored.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mcpp import kinds
from mcpp.outcomes import ContextState, ends_context, outcome_of, step_of, steps_of, title_of
from mcpp.payloads import ContextInfo, text_of
from mcpp.protocol.contexts import ContextTracker
from mcpp.protocol.envelope import Envelope


@dataclass(slots=True, eq=False)
class ContextNode:
    """One context: its envelopes and its child contexts.

    A context that was only named as a parent has no envelopes. An id that is used again after its
    context expired is another node, unless the gateway has revived the context.
    """

    id: str
    type: str | None = None
    creator: str | None = None  # the only one who fixes type and parent, and concludes it
    parent: "ContextNode | None" = field(default=None, repr=False)
    children: list["ContextNode"] = field(default_factory=list, repr=False)
    envelopes: list[Envelope] = field(default_factory=list, repr=False)
    conclusion: Envelope | None = None
    expired: bool = False
    title: str | None = None
    steps: tuple[str, ...] = ()  # that its creator expects
    done: list[str] = field(default_factory=list)  # those of them that were begun, in their order

    @property
    def participants(self) -> tuple[str, ...]:
        """The senders in this context, in the order of their first envelopes."""
        return tuple(dict.fromkeys(envelope.sender for envelope in self.envelopes))

    @property
    def state(self) -> ContextState:
        """How its creator ended it (C-19); else expired at the gateway, or open."""
        if self.conclusion is not None:
            return outcome_of(self.conclusion)
        return "expired" if self.expired else "open"

    @property
    def name(self) -> str:
        """What to call it: its title, or its type and the end of its id."""
        return self.title or f"{self.type or 'context'} {self.id[-6:]}"

    @property
    def progress(self) -> str | None:
        """How many of the expected steps were begun, such as "2 of 4"; None without (C-21)."""
        return f"{len(self.done)} of {len(self.steps)}" if self.steps else None

    def walk(self, depth: int = 0) -> Iterator[tuple["ContextNode", int]]:
        """Yield this context and its descendants, each with its depth."""
        pending = [(self, depth)]
        while pending:
            node, level = pending.pop()
            yield node, level
            pending += [(child, level + 1) for child in reversed(node.children)]


class ContextTree:
    """A log's contexts. Call `add` for each envelope in order. Owns the nodes."""

    def __init__(self, envelopes: Iterable[Envelope] = ()) -> None:
        self.main: list[Envelope] = []
        self._roots: dict[ContextNode, None] = {}
        self._current: dict[str, ContextNode] = {}
        self._tracker = ContextTracker()
        for envelope in envelopes:
            self.add(envelope)

    @property
    def roots(self) -> list[ContextNode]:
        """The contexts without a parent, in the order of their first mention."""
        return list(self._roots)

    def __iter__(self) -> Iterator[ContextNode]:
        """Yield every context, parents before children."""
        for root in self._roots:
            for node, _ in root.walk():
                yield node

    def __getitem__(self, id: str) -> ContextNode:
        """Return the latest context with an id."""
        return self._current[id]

    def __contains__(self, id: object) -> bool:
        return id in self._current

    def __len__(self) -> int:
        """Return the number of contexts, without the main one."""
        return sum(1 for _ in self)

    def add(self, envelope: Envelope) -> None:
        """Add the next envelope of the log."""
        known = self._tracker.learn(envelope)
        if known is None:
            self.main.append(envelope)
            if envelope.kind == kinds.CONTEXT:
                self._change(envelope)
            return
        node = self._node(known.id)
        self._update(node, known)
        node.envelopes.append(envelope)
        if envelope.sender == node.creator:
            self._describe(node, envelope)

    def outline(self) -> str:
        """Return the tree as text, with one line per context."""
        lines = [f"main: {_count(self.main)}"]
        for root in self._roots:
            lines += [_line(node, depth) for node, depth in root.walk(1)]
        return "\n".join(lines)

    def _node(self, id: str) -> ContextNode:
        node = self._current.get(id)
        if node is None or (node.expired and node.envelopes):
            node = self._current[id] = ContextNode(id)
            self._roots[node] = None
        return node

    def _update(self, node: ContextNode, known: ContextInfo) -> None:
        node.expired = False  # where only a placeholder had expired
        node.type = node.type or known.type
        node.creator = known.creator
        if node.parent is None and known.parent is not None:
            self._place(node, self._node(known.parent))

    def _describe(self, node: ContextNode, envelope: Envelope) -> None:
        """Note what the creator says about its context (C-17, C-19 to C-21)."""
        if envelope.context is not None:
            node.title = node.title or title_of(envelope.context)
            node.steps = node.steps or steps_of(envelope.context)
        if ends_context(envelope):
            node.conclusion = envelope
        elif node.steps and (step := step_of(envelope)) in node.steps and step not in node.done:
            node.done.append(step)

    def _place(self, node: ContextNode, parent: ContextNode) -> None:
        above: ContextNode | None = parent
        while above is not None:
            if above is node:
                return  # a cycle
            above = above.parent
        del self._roots[node]
        node.parent = parent
        parent.children.append(node)

    def _change(self, envelope: Envelope) -> None:
        change = self._tracker.change(envelope)
        if change is None:
            return
        for context in change.contexts:
            if change.event == "revived":
                self._revive(self._tracker.contexts[context.id])
            elif context.id in self._current:
                self._current[context.id].expired = True

    def _revive(self, known: ContextInfo) -> None:
        node = self._current.get(known.id) or self._node(known.id)
        self._update(node, known)
        # In a log without the beginning, another seemed to be the creator.
        if node.conclusion is not None and node.conclusion.sender != node.creator:
            node.conclusion = None


def _line(node: ContextNode, depth: int) -> str:
    who = f" by {', '.join(node.participants)}" if node.envelopes else ""
    title = "" if node.title is None else f" {_shortened(node.title)!r}"
    head = f"{'  ' * depth}{node.type or 'context'}{title} {node.id}{who}"
    head += f": {_count(node.envelopes)}"
    head += "" if node.progress is None else f", {node.progress} steps"
    if node.conclusion is None:
        return f"{head}, {node.state}"
    said = _shortened(text_of(node.conclusion) or "")
    if node.conclusion.kind == kinds.TOMBSTONE:
        said = f"{node.state} (erased)"
    return f"{head}, {said if node.state != 'concluded' else f'concluded: {said}'}"


def _count(envelopes: list[Envelope]) -> str:
    return f"{len(envelopes)} message{'' if len(envelopes) == 1 else 's'}"


def _shortened(text: str, limit: int = 60) -> str:
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
