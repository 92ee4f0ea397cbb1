"""Cards: what participants say about themselves and what they offer (G-86).

The gateway keeps a card as its participant wrote it and never reads it. Its digest shows others
whether they know it already. Cards are part of the log, so that they survive a restart.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.payloads import Update
from mcpp.protocol.cards import card_digest
from mcpp.protocol.codec import decode
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.records import CardState, LogEntry

MAX_CARDS_BYTES: Final = 4_194_304  # of all participants of a pod


def replay_card(cards: "Cards", entry: LogEntry) -> None:
    """Apply an entry of the log to the cards, without deciding on it again."""
    if entry.kind == kinds.UPDATE and entry.sender == GATEWAY:
        with suppress(DecodeError):
            cards.set(updated_participant(entry), entry.card)


def updated_participant(update: LogEntry) -> str:
    """Return the participant that a `system/update` is about. Raises DecodeError."""
    return decode(update.text).payload_as(Update).participant.id


class Cards:
    """The cards of a pod's participants, present or not. Owns them."""

    def __init__(self, cards: Iterable[CardState] = ()) -> None:
        self._cards = {card.participant: card.text for card in cards}
        self._digests = {name: card_digest(text) for name, text in self._cards.items()}
        self._bytes = sum(map(len, self._cards.values()))

    def get(self, participant: str) -> bytes | None:
        """Return a participant's card."""
        return self._cards.get(participant)

    def digest(self, participant: str) -> str | None:
        """Return the digest of a participant's card."""
        return self._digests.get(participant)

    def has_room(self, participant: str, size_bytes: int) -> bool:
        """Return whether a participant may have a card of this size."""
        kept = self._bytes - len(self._cards.get(participant, b""))
        return kept + size_bytes <= MAX_CARDS_BYTES

    def set(self, participant: str, text: bytes) -> None:
        """Replace a participant's card; an empty text removes it."""
        self._bytes += len(text) - len(self._cards.pop(participant, b""))
        self._digests.pop(participant, None)
        if text:
            self._cards[participant] = text
            self._digests[participant] = card_digest(text)

    def would_change(self, participant: str, text: bytes) -> bool:
        """Return whether a participant's card is another one than this; an empty one is none."""
        return self._cards.get(participant, b"") != text

    def keep(self, participants: Iterable[str]) -> None:
        """Forget the cards of all other participants."""
        for name in self._cards.keys() - set(participants):
            self.set(name, b"")

    def snapshot(self) -> tuple[CardState, ...]:
        """Return all cards."""
        return tuple(CardState(name, text) for name, text in self._cards.items())
