"""Hops: how many chats follow each other without a person, to stop agents that answer each other.

A chat that answers another one is a hop further than that. One that answers no known chat is a hop
further than the last such chat in its context. A person's chat has no hops, and its context begins
again. A participant that answers the same chat over and over gets further with each answer, too.

All of this follows from the log: after a restart, and at a new leader, it is read from its end.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.protocol.codec import decode
from mcpp.protocol.envelope import Envelope
from mcpp_gateway.core.journal import Journal, UnreadableError
from mcpp_gateway.core.records import LogEntry

K = TypeVar("K")
T = TypeVar("T")

# G-47: of so many chats, answers and contexts the hops are known; and so many entries are read.
_REMEMBERED: Final = 10_000
_READ_AT_ONCE: Final = 512


class Hops:
    """The hops of the last chats. Owns them."""

    __slots__ = ("_answers", "_chats", "_in_context", "_is_person", "_told", "max_hops")

    def __init__(self, max_hops: int, is_person: Callable[[str], bool]) -> None:
        self.max_hops = max_hops
        self._is_person = is_person
        self._chats: dict[str, int] = {}
        self._in_context: dict[str | None, int] = {}
        self._answers: dict[tuple[str, str], int] = {}  # of a participant to one chat
        self._told: dict[str | None, None] = {}  # contexts in which a loop was announced

    def count(self, chat: Envelope) -> int:
        """Return how many hops a chat would be from a person; 0 for a person's own."""
        if self._is_person(chat.sender):
            return 0
        answered = chat.correlation_id
        known = None if answered is None else self._chats.get(answered)
        if known is None or answered is None:
            return self._in_context.get(_place(chat), 0) + 1
        return max(known, self._answers.get((answered, chat.sender), 0)) + 1

    def add(self, chat: Envelope) -> None:
        """Count an accepted chat."""
        hops = self.count(chat)
        answered, place = chat.correlation_id, _place(chat)
        if not hops:
            self._in_context.pop(place, None)
            self._told.pop(place, None)
        elif answered is None or answered not in self._chats:
            _remember(self._in_context, place, hops)
        else:
            key = answered, chat.sender
            _remember(self._answers, key, self._answers.get(key, 0) + 1)
        _remember(self._chats, chat.id, hops)

    def tell(self, chat: Envelope) -> bool:
        """Return whether a refused chat is the first one in its context since a person's."""
        place = _place(chat)
        if place in self._told:
            return False
        _remember(self._told, place, None)
        return True

    def read(self, journal: Journal) -> None:
        """Count the chats at the end of a log, as far as it can be read."""
        position = max(journal.start, journal.end - _REMEMBERED)
        with suppress(UnreadableError):
            while entries := journal.read(position, min(_READ_AT_ONCE, journal.end - position)):
                for entry in entries:
                    self._read(entry)
                position += len(entries)

    def _read(self, entry: LogEntry) -> None:
        if entry.erased:
            return
        with suppress(DecodeError):
            if entry.kind == kinds.CHAT:
                self.add(decode(entry.text))
            elif entry.kind == kinds.LOOP:
                _remember(self._told, entry.contexts[0].id if entry.contexts else None, None)


def _place(chat: Envelope) -> str | None:
    return None if chat.context is None else chat.context.id


def _remember(among: dict[K, T], key: K, value: T) -> None:
    """Set a value as the latest one, and forget the oldest if there are too many."""
    among.pop(key, None)
    among[key] = value
    if len(among) > _REMEMBERED:
        del among[next(iter(among))]
