"""Decisions: what becomes of an envelope, given the state of the pod.

Deciding reads the context tree, the journal's dedupe window and the sender's capabilities. An
accepted envelope changes the tree at once, ahead of the journal; everything else changes nothing.
"""

from typing import Final

import msgspec

from mcpp.protocol.envelope import Envelope
from mcpp_gateway.core import refusals
from mcpp_gateway.core.contexts.tree import LiveContexts
from mcpp_gateway.core.journal import Journal
from mcpp_gateway.core.records import SHORT_LIST, DormantState, LogEntry
from mcpp_gateway.core.refusals import Refusal
from mcpp_gateway.core.sessions import ParticipantSettings

_RESERVED: Final = ("pod/", "system/")


class Revival(msgspec.Struct, frozen=True):
    """An accepted envelope, and the dormant contexts that it revived, as they were.

    Those come first in the log, parents before their children (C-12).
    """

    contexts: tuple[DormantState, ...]
    entry: LogEntry


class Decisions:
    """Decides on envelopes. Owns nothing: tree and journal are the pod's."""

    __slots__ = ("_journal", "_tree")

    def __init__(self, tree: LiveContexts, journal: Journal) -> None:
        self._tree = tree
        self._journal = journal

    def decide(
        self, settings: ParticipantSettings, envelope: Envelope, text: bytes, now: float
    ) -> LogEntry | Revival | Refusal | bytes | None:
        """Return the entry to log, a refusal, the original of a repeat, or None for `pod/*`.

        The order of the checks is part of the protocol (G-20).
        """
        sender = settings.id
        if envelope.sender != sender:
            return refusals.sender_mismatch(envelope.sender, sender)
        kind = envelope.kind
        if kind.startswith(_RESERVED):
            return None if kind.startswith("pod/") else refusals.reserved_kind(kind)
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
        to = envelope.to
        recipients = to if to is None or len(to) <= SHORT_LIST else frozenset(to)
        entry = LogEntry(envelope.id, sender, recipients, kind, lineage, text)
        return Revival(revived, entry) if revived else entry
