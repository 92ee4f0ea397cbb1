"""Conversations of an agent: with whom, in which context, and what it has said itself."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from mcpp import Envelope, Message

__all__ = ["Conversations"]

T = TypeVar("T")

_MAX_CONVERSATIONS: Final = 1_000
_MAX_CHATS: Final = 10_000


class Conversations(Generic[T]):
    """What an agent keeps for each participant and context; the oldest are forgotten."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._kept: dict[tuple[str, str | None], T] = {}
        self._chats: dict[str, None] = {}  # ids of our own

    def of(self, message: Message) -> T:
        """Return what is kept for the conversation of a message."""
        key = (message.sender, None if message.context is None else message.context.id)
        found = self._kept.pop(key, None)
        self._kept[key] = kept = self._make() if found is None else found  # the latest is the last
        if len(self._kept) > _MAX_CONVERSATIONS:
            del self._kept[next(iter(self._kept))]
        return kept

    def is_thanks(self, message: Message) -> bool:
        """Return whether a message replies to an answer of ours.

        Two agents that answer such messages would thank each other endlessly.
        """
        return message.correlation_id in self._chats

    def note(self, answer: Envelope | None) -> None:
        """Note an answer of ours."""
        if answer is not None:
            self._chats[answer.id] = None
            if len(self._chats) > _MAX_CHATS:
                del self._chats[next(iter(self._chats))]
