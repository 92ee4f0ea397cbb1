"""Where an envelope stands in the tree of contexts.

A context's `type` and `parent` are each fixed by the first envelope that names one (C-02); later
envelopes may omit them. So what an envelope's context *is* depends on what came before it, and the
gateway and the SDK both keep that with each envelope as its lineage.
"""

from dataclasses import dataclass, field

from mcpp.protocol.envelope import Context


# Compared by identity, so that it is a cheap key: the gateway keeps one for each context.
@dataclass(frozen=True, slots=True, eq=False)
class Lineage:
    """A context as it was fixed when an envelope came: its id, its type, and the ids above it."""

    id: str
    type: str | None = None
    ancestors: tuple[str, ...] = ()  # the parent first, the root last


@dataclass(slots=True)
class _Node:
    type: str | None = None
    parent: str | None = None


@dataclass(slots=True)
class Lineages:
    """Learns from a stream of envelopes which context belongs where. Owns what it has learned.

    It trusts the stream: the gateway has refused cycles and changed parents before.
    """

    _nodes: dict[str, _Node] = field(default_factory=dict)

    def observe(self, context: Context | None) -> Lineage | None:
        """Learn from an envelope's context and return where it stands; None is the main one."""
        if context is None:
            return None
        node = self._nodes.get(context.id)
        if node is None:
            node = self._nodes[context.id] = _Node()
        if node.type is None:
            node.type = context.type
        if node.parent is None and context.parent is not None:
            node.parent = context.parent
            self._nodes.setdefault(context.parent, _Node())
        return Lineage(context.id, node.type, self._ancestors(context.id))

    def find(self, id: str) -> Lineage | None:
        """Return where a context stands; None for an id that stands for none, as far as known."""
        node = self._nodes.get(id)
        return None if node is None else Lineage(id, node.type, self._ancestors(id))

    def forget(self, id: str) -> None:
        """Forget an expired context: its id may be used anew, for something else."""
        self._nodes.pop(id, None)

    def _ancestors(self, id: str) -> tuple[str, ...]:
        found: dict[str, None] = {}
        node = self._nodes.get(id)
        # A log that no gateway has checked may hold a cycle.
        while node is not None and node.parent is not None and node.parent not in found:
            found[node.parent] = None
            node = self._nodes.get(node.parent)
        return tuple(found)
