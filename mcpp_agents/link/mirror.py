"""What an envelope of one pod becomes in the other one. Nothing here sends or receives.

Everything follows from the source's envelopes: one becomes the same bytes after a restart, so the
target's gateway recognises a repetition.

- An envelope that was mirrored is not mirrored again, except one of a link that is to be continued,
  and that not into a pod that it has been in. So no envelope goes round.
- Besides what the filter passes, only what continues something of the target goes there: what the
  mirror of the other direction knows, or what is in or below a context that the link created.
- Only texts are mirrored as they are. A request, a proposal or a claim would make participants of
  the target act for the link: its kind becomes `link/KIND`, which no participant acts on.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Final

from mcpp import Context, Envelope, kinds, new_envelope
from mcpp.filters import Filter
from mcpp.payloads import ContextInfo
from mcpp.protocol.contexts import ContextTracker, Lineage
from mcpp_agents.link.origin import MirrorOrigin, Reference, mirrored_id

TEXTS: Final = (kinds.CHAT, kinds.REFLECTION, kinds.CONCLUSION)
PREFIX: Final = "link/"
_NOT_MIRRORED: Final = ("system/", "pod/", "live/", kinds.TOMBSTONE)
_MAX_KIND_LENGTH: Final = 512
_MAX_REMEMBERED: Final = 10_000


@dataclass(frozen=True)
class LinkedPod:
    """One of the two pods, and the link's name there."""

    pod: str
    me: str


@dataclass
class Mirror:
    """Mirrors from one pod to the other. Owns its view of the source's contexts.

    Args:
        source, target: the pods.
        filter: which envelopes are mirrored, besides those that continue something of the target:
            answers to its envelopes, and what is in or below its contexts. None: only those.
        as_is: globs of kinds that are mirrored as they are.
        through: links of the source whose mirrored envelopes go on.
        reverse: the mirror of the other direction, which knows whom an answer is for.
    """

    source: LinkedPod
    target: LinkedPod
    filter: Filter | None = None
    as_is: tuple[str, ...] = TEXTS
    through: frozenset[str] = frozenset()
    reverse: "Mirror | None" = None  # of the other direction
    _contexts: ContextTracker = field(default_factory=ContextTracker)
    # What was mirrored lately, by its id in the target: its id in the source, and its sender.
    _mirrored: dict[str, tuple[str, str]] = field(default_factory=dict)
    # Ids in the target of what has another one than P-90 says, by its id in the source.
    _renamed: dict[str, str] = field(default_factory=dict)

    def learn(self, contexts: Iterable[ContextInfo]) -> None:
        """Begin with the contexts that the source's welcome lists."""
        self._contexts.reset(contexts)

    def translate(self, envelope: Envelope) -> Envelope | None:
        """Observe the next envelope of the source; return what it becomes in the target, or None.

        Raises EncodeError if it would be no valid envelope there.
        """
        lineage = self._contexts.observe(envelope)
        if envelope.sender == self.source.me or envelope.kind.startswith(_NOT_MIRRORED):
            return None
        origin = self._origin(envelope)
        if origin is None or not self._is_wanted(envelope, lineage):
            return None
        kind = self._kind(envelope)
        if len(kind) > _MAX_KIND_LENGTH:
            return None
        self.remember(envelope.id, envelope.sender)
        return new_envelope(
            kind,
            envelope.raw_payload,
            sender=self.target.me,
            to=self._addressees(envelope),
            correlation_id=self._correlation(envelope.correlation_id),
            context=self._context(envelope),
            id=mirrored_id(origin.path[0]),
            ts=envelope.ts,
            extra={"origin": origin.to_json()},
        )

    def remember(self, id: str, sender: str = "", mirrored: str | None = None) -> None:
        """Note that an envelope, with its sender, or a context of the source is in the target.

        `mirrored` is its id there, where that was taken which it would have had.
        """
        usual = mirrored_id(Reference(self.source.pod, id))
        if mirrored is not None and mirrored != usual:
            self._mirrored.pop(usual, None)  # it is another participant's
            self._renamed[id] = mirrored
            _forget_oldest(self._renamed)
        self._mirrored[mirrored or usual] = id, sender
        _forget_oldest(self._mirrored)

    def rename(self, mirrored: Envelope, digits: str) -> Envelope:
        """Return an envelope with another id: another participant has taken the one it had."""
        origin = MirrorOrigin.of(mirrored)
        assert origin is not None
        renamed = mirrored.__replace__(id=f"{origin.path[0].pod}~{digits}")
        self.remember(origin.path[-1].id, origin.sender, renamed.id)
        return renamed

    def original(self, id: str) -> tuple[str, str] | None:
        """Return the id in the source, and the sender, of what was mirrored lately."""
        return self._mirrored.get(id)

    def _origin(self, envelope: Envelope) -> MirrorOrigin | None:
        """Return the origin to state, or None for what must not be mirrored again."""
        here = Reference(self.source.pod, envelope.id)
        if "origin" not in envelope.extra:
            return MirrorOrigin(envelope.sender, envelope.to or (), (here,))
        earlier = MirrorOrigin.of(envelope) if envelope.sender in self.through else None
        if earlier is None or any(each.pod == self.target.pod for each in earlier.path):
            return None
        return earlier._replace(path=(*earlier.path, here))

    def _is_wanted(self, envelope: Envelope, lineage: Lineage | None) -> bool:
        if self.filter is not None and self.filter.matches(envelope, lineage):
            return True
        if envelope.correlation_id is not None and self._known(envelope.correlation_id):
            return True
        return lineage is not None and any(map(self._own, (lineage.id, *lineage.ancestors)))

    def _kind(self, envelope: Envelope) -> str:
        is_as_is = any(fnmatchcase(kinds.decoded(envelope.kind), glob) for glob in self.as_is)
        context = envelope.context
        if envelope.kind == kinds.CONCLUSION and context is not None:
            # In the target the link would be the creator, whose conclusions count (C-17).
            info = self._contexts.contexts.get(context.id)
            is_as_is = is_as_is and info is not None and info.creator == envelope.sender
        return envelope.kind if is_as_is else f"{PREFIX}{envelope.kind}"

    def _known(self, id: str) -> tuple[str, str] | None:
        """Return id and sender in the target of what was mirrored from it lately."""
        reference = Reference.parse(id)
        if reference is not None:
            id = mirrored_id(reference)
        return None if self.reverse is None else self.reverse.original(id)

    def _returned(self, id: str) -> str | None:
        """Return the id in the target of what came from there, None for anything else."""
        if known := self._known(id):
            return known[0]
        reference = Reference.parse(id)
        if reference is not None:
            return reference.id if reference.pod == self.target.pod else None
        prefix = f"{self.target.pod}~"
        return id.removeprefix(prefix) if id.startswith(prefix) else None

    def _own(self, id: str) -> str | None:
        """Return the id in the target of a context that was mirrored from there, or None.

        Any participant may use such an id: those of the link are the ones that it created.
        """
        if Reference.parse(id) is not None:
            return self._returned(id) if self._known(id) else None
        info = self._contexts.contexts.get(id)
        return self._returned(id) if info is not None and info.creator == self.source.me else None

    def _correlation(self, id: str | None) -> str | None:
        if id is None:
            return None
        if returned := self._returned(id):
            return returned
        if Reference.parse(id) is not None:
            return id
        reference = Reference(self.source.pod, id)
        there = self._renamed.get(id) or mirrored_id(reference)
        return there if there in self._mirrored else str(reference)

    def _context(self, envelope: Envelope) -> Context | None:
        context = envelope.context
        if context is None:
            return None
        if own := self._own(context.id):
            return Context(id=own)
        info = self._contexts.contexts.get(context.id) or ContextInfo(id=context.id)
        self.remember(context.id)
        found = Context(
            id=mirrored_id(Reference(self.source.pod, context.id)),
            type=info.type,
            parent=None if info.parent is None else self._parent(info.parent),
        )
        if info.creator != envelope.sender:  # what others say of it does not count (C-20)
            return found
        return Context(
            id=found.id, type=found.type, parent=found.parent, raw_metadata=context.raw_metadata
        )

    def _parent(self, id: str) -> str:
        if own := self._own(id):
            return own
        reference = Reference.parse(id)
        if reference is not None:
            return reference.id if reference.pod == self.target.pod else id
        return mirrored_id(Reference(self.source.pod, id))

    def _addressees(self, envelope: Envelope) -> list[str] | None:
        """Return whom an envelope addresses in the target: `NAME@POD`, or whom it answers.

        What is addressed only to participants of the source is addressed to the link itself, so
        that no participant of the target takes it as meant for all.
        """
        if not envelope.to:
            return None
        suffix = f"@{self.target.pod}"
        names = [name[: -len(suffix)] for name in envelope.to if name.endswith(suffix)]
        answered = self._known(envelope.correlation_id or "")
        if self.source.me in envelope.to and answered is not None:
            names.append(answered[1])
        names = [name for name in names if name]
        if names or self.source.me in envelope.to:
            return names or None
        return [self.target.me]


def _forget_oldest(known: dict[str, Any]) -> None:
    if len(known) > _MAX_REMEMBERED:
        del known[next(iter(known))]
