"""Assembles entries into messages that every API accepts: alternating roles, paired calls.

A turn is the viewer's messages and calls, followed by the results and the messages of others. A
call joins the current turn until one of that turn's results has arrived: such calls were made
together. A result is placed behind its call, however late it arrives; a call without a result gets
an error result. Messages that others sent meanwhile follow the results.
"""

from collections.abc import Iterable
from typing import Final

from mcpp.prompts.blocks import (
    Block,
    CallBlock,
    PromptMessage,
    QuotedBlock,
    ResultBlock,
    ShownBlock,
    TextBlock,
)
from mcpp.prompts.entries import NO_RESULT, PromptEntry

BEGINNING: Final = TextBlock("[The log begins here.]")
NOTHING_NEW: Final = TextBlock("[Nothing new has been said.]")
"""Fillers: APIs require the first message to be the user's, and most models the last one too."""


class _Turn:
    __slots__ = ("calls", "has_results", "others", "own")

    def __init__(self) -> None:
        self.own: list[Block] = []
        self.calls: dict[str, CallBlock] = {}
        self.others: list[Block] = []
        self.has_results = False


def to_messages(
    shown: Iterable[tuple[PromptEntry, ShownBlock]], opening: TextBlock | None = None
) -> tuple[PromptMessage, ...]:
    """Return the messages for entries in log order, each given with the block that shows it.

    The block of a folded context goes into a user message, even if the viewer concluded it.
    """
    turn = _Turn()
    turns = [turn]
    results: dict[str, ResultBlock] = {}
    for entry, block in shown:
        if isinstance(block, ResultBlock):
            results[block.call_id] = block
            turn.has_results = turn.has_results or block.call_id in turn.calls
        elif isinstance(block, CallBlock):
            if turn.has_results or (turn.others and not turn.calls):
                turn = _Turn()
                turns.append(turn)
            turn.calls[block.id] = block
        elif isinstance(block, QuotedBlock):
            turn.others.extend(block.content)
        elif entry.kind == "own" and block is entry.full_block():
            if turn.has_results or turn.others:
                turn = _Turn()
                turns.append(turn)
            turn.own.append(block)
        else:
            turn.others.append(block)
    return _messages(turns, results, opening)


def _messages(
    turns: list[_Turn], results: dict[str, ResultBlock], opening: TextBlock | None
) -> tuple[PromptMessage, ...]:
    messages: list[PromptMessage] = []
    if opening is not None:
        turns[0:0] = [_Turn()]
        turns[0].others.append(opening)
    for turn in turns:
        if turn.own or turn.calls:
            messages.append(PromptMessage("assistant", (*turn.own, *turn.calls.values())))
        if turn.calls or turn.others:
            answers = [
                results.get(call) or ResultBlock(call, (NO_RESULT,), is_error=True)
                for call in turn.calls
            ]
            messages.append(PromptMessage("user", (*answers, *turn.others)))
    return _alternating(messages)


def _alternating(messages: list[PromptMessage]) -> tuple[PromptMessage, ...]:
    joined: list[PromptMessage] = []
    if not messages or messages[0].role == "assistant":
        joined.append(PromptMessage("user", (BEGINNING,)))
    for message in messages:
        if joined and joined[-1].role == message.role:
            joined[-1] = PromptMessage(message.role, joined[-1].blocks + message.blocks)
        else:
            joined.append(message)
    if joined[-1].role == "assistant":
        joined.append(PromptMessage("user", (NOTHING_NEW,)))
    return tuple(joined)
