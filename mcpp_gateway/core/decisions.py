"""Decisions: what becomes of an envelope, given the state of the pod.

Deciding reads the context tree, the journal's dedupe window and the sender's capabilities. An
accepted envelope changes the tree at once, ahead of the journal; everything else changes nothing.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET

from mcpp.errors import DecodeError
from mcpp.kinds import CHAT
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import Envelope
from mcpp_gateway.core import refusals
from mcpp_gateway.core.contexts.hops import Hops
from mcpp_gateway.core.contexts.tree import LiveContexts
from mcpp_gateway.core.journal import Journal
from mcpp_gateway.core.records import SHORT_LIST, DormantState, LogEntry, recipients
from mcpp_gateway.core.refusals import Refusal
from mcpp_gateway.core.sessions import ParticipantSettings

_OF_GATEWAY: Final = ("system/", "tombstone")  # what kinds begin with that no participant may send
SPECIAL: Final = ("pod/", "live/", *_OF_GATEWAY)  # and those that are not logged so
MAX_LIVE_BYTES: Final = 16_384


class Revival(msgspec.Struct, frozen=True):
    """An accepted envelope, and the dormant contexts that it revived, as they were.

    Those come first in the log, parents before their children (C-12).
    """

    contexts: tuple[DormantState, ...]
    entry: LogEntry


class LivePart(msgspec.Struct, frozen=True):
    """A live part to relay (G-80). Its entry is not for the log."""

    entry: LogEntry


class SuspectedLoop(msgspec.Struct, frozen=True):
    """A refused chat, the first one of a loop in its context (G-84): that is announced."""

    refusal: Refusal
    hops: int
    context: Lineage | None


# The entry to log, a part to relay, a refusal, the original of a repeat, or None for a request to
# the gateway.
Verdict: TypeAlias = LogEntry | Revival | LivePart | SuspectedLoop | Refusal | bytes | None


class Decisions:
    """Decides on envelopes. Owns nothing: tree and journal are the pod's."""

    __slots__ = ("_attachment_refusal", "_journal", "_tree", "hops")

    def __init__(
        self,
        tree: LiveContexts,
        journal: Journal,
        hops: Hops | None = None,
        attachment_refusal: Callable[[Envelope], Refusal | None] = lambda envelope: None,
    ) -> None:
        self.hops = hops  # None: chats are not limited
        self._attachment_refusal = attachment_refusal
        self._tree = tree
        self._journal = journal

    def decide(
        self, settings: ParticipantSettings, envelope: Envelope, text: bytes, now: float
    ) -> Verdict:
        """Decide on an envelope. The order of the checks is part of the protocol (G-20)."""
        sender = settings.id
        if envelope.sender != sender:
            return refusals.sender_mismatch(envelope.sender, sender)
        kind = envelope.kind
        if kind.startswith(SPECIAL):
            return self._decide_special(settings, envelope, text, now)
        context = envelope.context
        lineage = node = None
        if context is not None:
            node = self._tree.find(context, sender)
            lineage = self._tree.lineage(context, sender) if node is None else node.lineage
        if not settings.capabilities.allow(envelope, lineage):
            return refusals.capability_violation(kind, settings.capabilities.patterns)
        original = self._journal.find(envelope.id)
        if original is not None:
            if original.sender == sender:
                return original.text or text
            return refusals.duplicate_id(envelope.id)
        if not self._journal.accepting:
            return refusals.unavailable()
        named: tuple[str, ...] = ()
        private: tuple[str, ...] = ()
        if envelope.raw_attachments is not UNSET:
            refusal = self._attachment_refusal(envelope)
            if refusal is not None:
                return refusal
            named, private = _named(envelope)
        hops = self.hops if kind == CHAT else None
        if hops is not None and hops.max_hops < (count := hops.count(envelope)):
            return _suspect_loop(hops, envelope, count, lineage)
        revived: tuple[DormantState, ...] = ()
        if node is not None:  # the common case
            wait = node.bucket.take(now)
            if wait:
                return refusals.rate_limited(wait, "context")
            self._tree.enter(node, sender, now)
        elif context is not None:
            place = self._tree.check(context, sender, now)
            if isinstance(place, str):
                return refusals.context(place, context.id)
            wait = 0.0 if place.node is None else place.node.bucket.take(now)
            if wait:
                return refusals.rate_limited(wait, "context")
            revived = place.revived
            lineage = self._tree.open(place, sender, now)
        if hops is not None:
            hops.add(envelope)
        to = envelope.to
        several = to if to is None or len(to) <= SHORT_LIST else frozenset(to)
        entry = LogEntry(envelope.id, sender, several, kind, lineage, text, (), (), now)
        if named:
            entry = msgspec.structs.replace(entry, attachments=named, private=private)
        return Revival(revived, entry) if revived else entry

    def _decide_special(
        self, settings: ParticipantSettings, envelope: Envelope, text: bytes, now: float
    ) -> LivePart | Refusal | None:
        kind = envelope.kind
        if kind.startswith("live/"):
            return self.decide_live(settings, envelope, text, now)
        return None if kind.startswith("pod/") else refusals.reserved_kind(kind)

    def decide_live(
        self, settings: ParticipantSettings, envelope: Envelope, text: bytes, now: float
    ) -> LivePart | Refusal:
        """Decide on a live part. Type and parent of its context are the tree's (G-80)."""
        if len(text) > MAX_LIVE_BYTES:
            reason = f"is a live part of more than {MAX_LIVE_BYTES} bytes"
            return refusals.invalid_envelope(DecodeError("$", reason))
        context, lineage = envelope.context, None
        node = None if context is None else self._tree.begun(context.id)
        if context is not None:
            lineage = Lineage(context.id) if node is None else node.lineage
        if not settings.capabilities.allow(envelope, lineage):
            return refusals.capability_violation(envelope.kind, settings.capabilities.patterns)
        if context is not None:
            if node is None:
                return refusals.context_not_live(context.id)
            wait = node.bucket.take(now)
            if wait:
                return refusals.rate_limited(wait, "context")
        return LivePart(live_entry(envelope, lineage, text, now))


def live_entry(envelope: Envelope, lineage: Lineage | None, text: bytes, now: float) -> LogEntry:
    """Return a live part in the form in which recipients are chosen; it is not for the log."""
    to = recipients(envelope.to)
    return LogEntry(envelope.id, envelope.sender, to, envelope.kind, lineage, text, (), (), now)


def _suspect_loop(
    hops: Hops, chat: Envelope, count: int, lineage: Lineage | None
) -> SuspectedLoop | Refusal:
    refusal = refusals.loop_suspected(count)
    return SuspectedLoop(refusal, count, lineage) if hops.tell(chat) else refusal


def sender_refusal(settings: ParticipantSettings, envelope: Envelope) -> Refusal | None:
    """Return a refusal for what needs no state: a wrong sender, a reserved kind.

    The first checks of `Decisions.decide`, which has them in place: 0.1 µs.
    """
    if envelope.sender != settings.id:
        return refusals.sender_mismatch(envelope.sender, settings.id)
    if envelope.kind.startswith(_OF_GATEWAY):
        return refusals.reserved_kind(envelope.kind)
    return None


def _named(envelope: Envelope) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the blobs that an envelope names, and those that it names only privately (A-13)."""
    attachments = envelope.attachments
    public = {each.hash for each in attachments if not each.private}
    named = tuple(dict.fromkeys(each.hash for each in attachments))
    return named, tuple(hash for hash in named if hash not in public)
