"""Cards: who the participants of a pod are and what they offer, without asking each of them.

card = await pod.cards.get("librarian")
card.tools["search"].description

A participant announces its card once. The gateway keeps it; welcomes and presence carry its digest,
so that a card is fetched only where it is not known yet.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio

from mcpp import kinds
from mcpp.client import factory
from mcpp.errors import McppError, Refused
from mcpp.payloads import CardAnswer
from mcpp.protocol.cards import Card, card_text

if TYPE_CHECKING:
    from mcpp.client.connection import Connection

_KEPT_CARDS: Final = 1_000
# For the message of an error, which need not be complete.
_OFFERING_SECONDS: Final = 0.5
_OFFERING_CARDS: Final = 50
_ABSENT: Final = ("no_card", "reserved_kind")


class PodCards:
    """The cards of a pod's participants. Owns those that were fetched."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._known: dict[tuple[str, str], Card] = {}  # by participant and digest

    def digest(self, participant: str) -> str | None:
        """Return the digest of a present participant's card; None if it has none."""
        info = self._connection.session.participants.get(participant)
        return None if info is None else info.card

    async def get(self, participant: str, *, wait_seconds: float = 0.0) -> Card | None:
        """Return a present participant's card, or None if it has none, or none for us.

        Args:
            participant: its name.
            wait_seconds: how long to wait for it to announce one.

        Raises ConnectionLostError, and Refused for another reason.
        """
        if wait_seconds and self.digest(participant) is None:
            with anyio.move_on_after(wait_seconds):
                while self.digest(participant) is None:
                    await self._connection.wait_for_update()
        digest = self.digest(participant)
        if digest is None:
            return None
        known = self._known.get((participant, digest))
        if known is not None:
            return known
        request = factory.new_envelope(
            kinds.CARD_REQUEST, {"participant": participant}, sender=self._connection.session.name
        )
        try:
            answer = (await self._connection.send(request)).payload_as(CardAnswer)
        except Refused as refused:
            if refused.code in _ABSENT:
                return None
            raise
        if answer.card is None or answer.digest is None:
            return None
        card = Card.read(participant, answer.card)
        self._known[participant, answer.digest] = card
        if len(self._known) > _KEPT_CARDS:
            del self._known[next(iter(self._known))]
        return card

    async def all(self) -> dict[str, Card]:
        """Return the cards of all present participants that have one, by name."""
        found: dict[str, Card] = {}
        for participant in list(self._connection.session.participants):
            card = await self.get(participant)
            if card is not None:
                found[participant] = card
        return found

    async def offering(self, tool: str) -> tuple[str, ...]:
        """Return which participants offer a tool, as far as their cards are quickly known."""
        found: list[str] = []
        with anyio.move_on_after(_OFFERING_SECONDS), suppress(McppError):
            for participant in list(self._connection.session.participants)[:_OFFERING_CARDS]:
                card = await self.get(participant)
                if card is not None and tool in card.tools:
                    found.append(participant)
        return tuple(found)

    async def propose(self, card: Mapping[str, Any]) -> None:
        """Announce a card without waiting for the gateway to take it."""
        self._connection.card = card_text(card)
        await self._connection.announce_card()

    async def announce(self, card: Mapping[str, Any] | None) -> None:
        """Announce this participant's own card; None removes it. It is announced again if need be.

        Raises EncodeError for more than 64 KiB, Refused and ConnectionLostError.
        """
        self._connection.card = b"" if card is None else card_text(card)
        await self._connection.announce_card(wait=True)
