"""Requests about cards (`pod/card`): to set one's own, and to read another participant's."""

from collections.abc import Callable
from typing import Final

import msgspec

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.protocol.cards import MAX_CARD_BYTES
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.jsontext import split_object
from mcpp_gateway.core import refusals, system_envelopes
from mcpp_gateway.core.effects import Effect
from mcpp_gateway.core.joining.cards import Cards
from mcpp_gateway.core.joining.members import Members
from mcpp_gateway.core.refusals import Refusal
from mcpp_gateway.core.requests.answers import Answers
from mcpp_gateway.core.sessions import Session

_NOTHING: Final = b"null"


class NewCard(msgspec.Struct, frozen=True):
    """A participant's new card; an empty text removes it."""

    text: bytes


SetCard = Callable[[Session, NewCard, Envelope, float], Effect | None]


def read_card_request(envelope: Envelope) -> NewCard | str:
    """Return the card to set, or the participant whose card is wanted. Raises DecodeError."""
    members = split_object(bytes(envelope.raw_payload), "$.payload")
    if "card" in members:
        text = bytes(members["card"])
        if text == _NOTHING:
            return NewCard(b"")
        if not text.startswith(b"{"):
            raise DecodeError("$.payload.card", "must be an object or null")
        if len(text) > MAX_CARD_BYTES:
            raise DecodeError("$.payload.card", f"is longer than {MAX_CARD_BYTES} bytes")
        return NewCard(text)
    try:
        return msgspec.json.decode(members.get("participant", b"null"), type=str)
    except msgspec.DecodeError:
        raise DecodeError("$.payload", "needs card, or the name of a participant") from None


def card_refusal(cards: Cards, participant: str, card: NewCard) -> Refusal | None:
    """Return why a participant cannot have a card, or None."""
    if cards.has_room(participant, len(card.text)):
        return None
    return refusals.card_limit()


class CardRequests:
    """Serves the cards of a pod. Owns nothing."""

    def __init__(self, answers: Answers, members: Members, set_card: SetCard) -> None:
        self._answers = answers
        self._members = members
        self._set_card = set_card

    def serve(self, session: Session, envelope: Envelope, now: float) -> Effect | None:
        """Answer a request, or refuse it."""
        try:
            wanted = read_card_request(envelope)
        except DecodeError as error:
            refusal = refusals.invalid_card(error)
            return self._answers.refuse(session, refusal, envelope.id, now)
        if isinstance(wanted, NewCard):
            return self._set_card(session, wanted, envelope, now)
        rights = self._members.rights(session.member.settings.id)
        text = self._members.cards.get(wanted)
        if text is None or not rights.may_read_card(wanted):
            refusal = refusals.no_card(wanted)
            return self._answers.refuse(session, refusal, envelope.id, now)
        payload = system_envelopes.card(wanted, self._members.cards.digest(wanted), text)
        return self._answers.reply(session, kinds.CARD, payload, now, correlation_id=envelope.id)
