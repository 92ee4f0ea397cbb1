"""Cards: who a participant is and what it offers, as it says itself.

A card is a JSON object of at most 64 KiB with names and descriptions; schemas come from
`tools/list`. The gateway keeps it and does not read it (G-86).
"""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final

import msgspec

from mcpp.errors import EncodeError

__all__ = [
    "MAX_CARD_BYTES",
    "QUESTIONS",
    "Card",
    "OfferedItem",
    "card_digest",
    "card_text",
    "fitting_card",
]

MAX_CARD_BYTES: Final = 65_536
# Methods of questions (P-61), and how a card says that its participant answers them.
QUESTIONS: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
_OFFERS_BYTES: Final = 49_152  # the rest is for description and instructions


class OfferedItem(msgspec.Struct, frozen=True):
    """A tool, prompt or resource of a participant. `name` is a resource's address."""

    participant: str
    name: str
    description: str = ""


class Card(msgspec.Struct, frozen=True):
    """What a participant says about itself and what it offers, by name.

    `answers` lists what it can be asked: `chat`, `elicitation`, `sampling`, `roots`, `tasks`.
    `raw` is all of it.
    """

    participant: str
    description: str = ""
    instructions: str = ""
    tools: Mapping[str, OfferedItem] = {}
    prompts: Mapping[str, OfferedItem] = {}
    resources: Mapping[str, OfferedItem] = {}
    answers: tuple[str, ...] = ()
    raw: Mapping[str, Any] = {}

    def may_offer(self, what: str) -> bool:
        """Return whether to ask it for its `tools`, `prompts` or `resources`.

        Not if the card is complete and lists none: it has `tools`, and no `more` (P-72).
        """
        is_complete = isinstance(self.raw.get("tools"), list) and not self.raw.get("more")
        return bool(self.raw.get(what)) or not is_complete

    @classmethod
    def read(cls, participant: str, value: Any) -> "Card":
        """Return a card from its JSON value. What is not in the usual form is left out."""
        known = value if isinstance(value, dict) else {}
        answers = known.get("answers")
        return cls(
            participant,
            _text(known.get("description")),
            _text(known.get("instructions")),
            _offers(participant, known.get("tools"), "name"),
            _offers(participant, known.get("prompts"), "name"),
            _offers(participant, known.get("resources"), "uri"),
            tuple(filter(_text, answers)) if isinstance(answers, list) else (),
            known,
        )


def card_text(card: Mapping[str, Any]) -> bytes:
    """Return a card as it is sent. Raises EncodeError if it is too long or cannot be encoded."""
    try:
        text = msgspec.json.encode(card)
    except (TypeError, ValueError, RecursionError) as error:
        raise EncodeError("$.payload.card", f"cannot be encoded as JSON: {error}") from None
    if len(text) > MAX_CARD_BYTES:
        raise EncodeError("$.payload.card", f"is longer than {MAX_CARD_BYTES} bytes")
    return text


def fitting_card(offers: Mapping[str, list[dict[str, str]]]) -> dict[str, Any]:
    """Return what is offered with as much of the descriptions as fits; then fewer offers."""
    for limit in (10_000, 1_000, 200, 0):
        cut = {
            name: [each | {"description": each["description"][:limit]} for each in some]
            for name, some in offers.items()
        }
        if len(msgspec.json.encode(cut)) <= _OFFERS_BYTES:
            return cut
    while cut and len(msgspec.json.encode(cut)) > _OFFERS_BYTES:
        cut = {name: some[: len(some) // 2] for name, some in cut.items()}
    return cut | {"more": True}


def card_digest(text: bytes) -> str:
    """Return the digest of a card: half of its SHA-256, in hexadecimal (G-86)."""
    return sha256(text).hexdigest()[:32]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _offers(participant: str, value: Any, key: str) -> dict[str, OfferedItem]:
    found: dict[str, OfferedItem] = {}
    for each in value if isinstance(value, list) else ():
        if isinstance(each, dict) and (name := _text(each.get(key))):
            found[name] = OfferedItem(participant, name, _text(each.get("description")))
    return found
