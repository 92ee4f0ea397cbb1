"""Entries put into messages that every API accepts: sides in turn, calls with their results.

A turn is what the viewer said and called, then what came back and what it heard. A call joins the
turn before it as long as none of that turn's results has come: those calls were made together. A
result goes to its call, however late it comes; a call without one gets an error made up. What
others say meanwhile waits behind the results.
"""

from collections.abc import Iterable
from typing import Final

from mcpp.prompts.blocks import Block, CallBlock, PromptMessage, ResultBlock, TextBlock
from mcpp.prompts.entries import NO_RESULT, PromptEntry

BEGINNING: Final = TextBlock("[The log begins here.]")
NOTHING_NEW: Final = TextBlock("[Nothing new has been said.]")
"""Both in our words: an API wants the first word to be the user's, and most models the last."""


class _Turn:
    __slots__ = ("answered", "calls", "hears", "says")

    def __init__(self) -> None:
        self.says: list[Block] = []
        self.calls: dict[str, CallBlock] = {}
        self.hears: list[Block] = []
        self.answered = False


def to_messages(
    shown: Iterable[tuple[PromptEntry, Block]], opening: TextBlock | None = None
) -> tuple[PromptMessage, ...]:
    """Return the messages for entries in the order of the log, each with the block that shows it.

    A block that stands for a whole context is heard, whoever concluded it.
    """
    turn = _Turn()
    turns = [turn]
    results: dict[str, ResultBlock] = {}
    for entry, block in shown:
        if isinstance(block, ResultBlock):
            results[block.call_id] = block
            turn.answered = turn.answered or block.call_id in turn.calls
        elif isinstance(block, CallBlock):
            if turn.answered or (turn.hears and not turn.calls):
                turn = _Turn()
                turns.append(turn)
            turn.calls[block.id] = block
        elif entry.sort == "say" and block is entry.whole():
            if turn.answered or turn.hears:
                turn = _Turn()
                turns.append(turn)
            turn.says.append(block)
        else:
            turn.hears.append(block)
    return _messages(turns, results, opening)


def _messages(
    turns: list[_Turn], results: dict[str, ResultBlock], opening: TextBlock | None
) -> tuple[PromptMessage, ...]:
    messages: list[PromptMessage] = []
    if opening is not None:
        turns[0:0] = [_Turn()]
        turns[0].hears.append(opening)
    for turn in turns:
        if turn.says or turn.calls:
            messages.append(PromptMessage("assistant", (*turn.says, *turn.calls.values())))
        if turn.calls or turn.hears:
            given = [
                results.get(call) or ResultBlock(call, (NO_RESULT,), is_error=True)
                for call in turn.calls
            ]
            messages.append(PromptMessage("user", (*given, *turn.hears)))
    return _joined(messages)


def _joined(messages: list[PromptMessage]) -> tuple[PromptMessage, ...]:
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
