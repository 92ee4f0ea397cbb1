"""Decisions at the edge: what any gateway of a cluster checks before the leader does."""

from collections.abc import Callable

from msgspec import UNSET

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.protocol.envelope import Envelope
from mcpp_gateway.core import refusals
from mcpp_gateway.core.contexts.tree import LiveContexts
from mcpp_gateway.core.decisions import SPECIAL, Decisions, Verdict, sender_refusal
from mcpp_gateway.core.journal import Journal
from mcpp_gateway.core.refusals import Refusal
from mcpp_gateway.core.requests.cards import NewCard, read_card_request
from mcpp_gateway.core.sessions import ParticipantSettings


class EdgeDecisions(Decisions):
    """Decides as far as any gateway can; the rest is the leader's."""

    __slots__ = ("leads",)

    def __init__(
        self,
        tree: LiveContexts,
        journal: Journal,
        attachment_refusal: Callable[[Envelope], Refusal | None],
    ) -> None:
        super().__init__(tree, journal, None, attachment_refusal)
        self.leads = False  # the leader is here, and checks everything itself

    def follow(self, tree: LiveContexts, *, leads: bool) -> None:
        """Take note that another gateway decides, or this one: its tree is another one then."""
        self._tree = tree
        self.leads = leads

    def decide(
        self, settings: ParticipantSettings, envelope: Envelope, text: bytes, now: float
    ) -> Verdict:
        """Return a refusal, None for `pod/*`, a live part, or the text for the leader to decide."""
        kind = envelope.kind
        if (
            self.leads
            and envelope.sender == settings.id
            and envelope.raw_attachments is UNSET
            and not kind.startswith(SPECIAL)
        ):
            return text  # the common case at the leader, without a call: 0.2 µs
        refusal = sender_refusal(settings, envelope)
        if refusal is not None or kind.startswith("pod/"):
            return text if refusal is None and _sets_card(envelope) else refusal
        if kinds.is_live(kind):
            return self.decide_live(settings, envelope, text, now)
        # Here, not at the leader: this gateway has sent what the sender has heard.
        if envelope.raw_attachments is not UNSET:
            refusal = self._attachment_refusal(envelope)
            if refusal is not None:
                return refusal
        if self.leads:
            return text
        capabilities = settings.capabilities
        if not (capabilities.reads_context or capabilities.allow(envelope, None)):
            # Where no pattern reads a context, this gateway knows as much as the leader.
            return refusals.capability_violation(kind, capabilities.patterns)
        return text


def _sets_card(envelope: Envelope) -> bool:
    """Return whether a request sets a card: that is for the leader."""
    if envelope.kind != kinds.CARD_REQUEST:
        return False
    try:
        return isinstance(read_card_request(envelope), NewCard)
    except DecodeError:
        return False
