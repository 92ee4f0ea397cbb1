"""Chats that a participant has missed: sent to it while it was away, and not answered."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from mcpp import Message, kinds
from mcpp.client.factory import now
from mcpp.outcomes import ends_context
from mcpp.protocol import rpc
from mcpp.times import read_timestamp

__all__ = ["MissedChat", "missed_chats"]


class MissedChat(NamedTuple):
    """A chat that waits for an answer."""

    message: Message
    is_begun: bool  # an earlier process began to answer it


def missed_chats(past: Sequence[Message], max_age: timedelta) -> list[MissedChat]:
    """Return the chats for this participant that wait for an answer, the oldest first.

    Left out are those that their sender has given up, that reply to this participant, whose context
    has ended, or that are too old.
    """
    own = [each for each in past if each.sender == each.pod.me]
    said = {each.id for each in own if each.kind == kinds.CHAT}
    answered = {each.correlation_id for each in own if each.kind == kinds.CHAT}
    begun = {each.correlation_id for each in own}
    given_up = {
        (each.sender, each.correlation_id) for each in past if each.kind == rpc.CANCELLED_KIND
    }
    ended = {each.context.id for each in past if each.context is not None and _ends(each)}
    earliest = now() - max_age
    return [
        MissedChat(each, each.id in begun)
        for each in past
        if each.kind == kinds.CHAT
        and each.is_for_me
        and each.correlation_id not in said
        and each.id not in answered
        and (each.sender, each.id) not in given_up
        and (each.context is None or each.context.id in each.pod.contexts.keys() - ended)
        and read_timestamp(each.envelope.ts) >= earliest
    ]


def _ends(message: Message) -> bool:
    """Return whether a message of a context's creator ends the context."""
    assert message.context is not None
    known = message.pod.contexts.get(message.context.id)
    is_creators = known is None or known.creator == message.sender
    return is_creators and ends_context(message.envelope)
