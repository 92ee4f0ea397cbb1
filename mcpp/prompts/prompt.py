"""A finished prompt: what it says, in each API's form, and what was done to make it fit."""

from functools import cached_property
from itertools import chain
from typing import Any, Final

import msgspec

from mcpp.prompts import quoting, render
from mcpp.prompts.blocks import Block, PromptMessage, price, price_all
from mcpp.prompts.draft import Changed, LeftOut, PromptDraft, omission
from mcpp.prompts.entries import PromptEntry
from mcpp.prompts.turns import to_messages
from mcpp.protocol.envelope import Envelope
from mcpp.tokens import Counter
from mcpp.transient.calls import failure
from mcpp.transient.marks import transient


class Report(msgspec.Struct, frozen=True):
    """What a prompt costs and what it leaves out.

    `first_changed` is the index of the first message that differs from the prompt before, or, if
    none was given, from this prompt with nothing changed or dropped. `cache_lost` is what the cache
    of that one loses.
    """

    tokens_before: int
    tokens_after: int
    changed: tuple[Changed, ...]
    left_out: tuple[LeftOut, ...]
    first_changed: int | None
    cache_lost: int


class Prompt:
    """Messages for a model. Immutable; the same log gives the same prompt, byte for byte."""

    def __init__(
        self,
        system: str,
        draft: PromptDraft,
        *,
        left_out: tuple[LeftOut, ...] = (),
        previous: "Prompt | None" = None,
    ) -> None:
        self.system: Final = system
        self.messages: Final = to_messages(draft.shown(), omission(draft.dropped))
        self._draft = draft
        self._left_out = left_out
        # Not the prompt itself, or each would hold all before it.
        self._previous = None if previous is None else (previous.system, previous.messages)

    def anthropic(self) -> dict[str, Any]:
        """Return `system` and `messages` for Anthropic's Messages API."""
        return render.anthropic(self.system, self.messages)

    def openai_chat(self) -> dict[str, Any]:
        """Return `messages` for OpenAI's Chat Completions API."""
        return render.openai_chat(self.system, self.messages)

    def openai_responses(self) -> dict[str, Any]:
        """Return `instructions` and `input` for OpenAI's Responses API."""
        return render.openai_responses(self.system, self.messages)

    def markdown(self) -> str:
        """Return the prompt as a page for people."""
        return render.markdown(self.system, self.messages)

    @cached_property
    def tokens(self) -> int:
        """What the prompt costs by its counter, system text included, tool definitions not."""
        return self._count(self.system) + price_all(self.messages, self._count)

    @cached_property
    def report(self) -> Report:
        """What was done and what it saved. Made on first use: it counts every token."""
        whole = to_messages((entry, entry.whole()) for entry in self._draft.entries)
        system, reference = self._previous or (self.system, whole)
        if system == self.system:
            first, lost = _departure(reference, self.messages, self._count)
        else:  # it stands before the first message
            first, lost = 0, self._count(system) + price_all(reference, self._count)
        return Report(
            tokens_before=self._count(self.system) + price_all(whole, self._count),
            tokens_after=self.tokens,
            changed=tuple(self._draft.changed.values()),
            left_out=self._left_out + tuple(self._draft.left_out.values()),
            first_changed=first,
            cache_lost=lost,
        )

    @cached_property
    def handles(self) -> frozenset[str]:
        """The handles that this prompt shows."""
        return frozenset(change.handle for change in self._draft.changed.values())

    def originals(self, handle: str) -> tuple[Envelope, ...]:
        """Return the envelopes behind a handle as they came, byte for byte; none if unknown."""
        return tuple(entry.envelope for entry in self._behind(handle))

    def expand(self, handle: str) -> dict[str, Any]:
        """Return what a call of the `expand` tool gives: the original, itself transient.

        Publish it as the answer to a call that the viewer addressed to itself, and the log holds it
        as any other result. The answer to a call of the viewer's comes back as it was, but for the
        marks: those are its server's to make, and would now be the viewer's. All else is quoted.
        """
        entries = self._behind(handle)
        if not entries:
            return failure(f"Nothing is collapsed under {quoting.name(handle)}.")
        first = entries[0]
        if len(entries) == 1 and first.sort == "result" and first.call is not None:
            result = first.call.original()
            result.pop("_meta", None)
            return transient(result)
        lines = [
            f"@{quoting.name(one.envelope.sender)} ({quoting.name(one.envelope.kind)}):\n"
            + quoting.quote(bytes(one.envelope.raw_payload).decode())
            for one in entries
        ]
        return transient({"content": [{"type": "text", "text": "\n".join(lines)}]})

    def _behind(self, handle: str) -> tuple[PromptEntry, ...]:
        return self._draft.originals[handle] if handle in self.handles else ()

    @property
    def _count(self) -> Counter:
        return self._draft.count


def _departure(
    before: tuple[PromptMessage, ...], after: tuple[PromptMessage, ...], count: Counter
) -> tuple[int | None, int]:
    """Return the message of `after` in which `before` is left, and what of `before` is lost."""
    old, new = _flat(before), _flat(after)
    same = 0
    for (_, one), (_, other) in zip(old, new, strict=False):
        if one != other:
            break
        same += 1
    if same == len(old):
        return None, 0
    index = new[same][0] if same < len(new) else len(after)
    return index, sum(price(block, count) for _, (_, block) in old[same:])


def _flat(messages: tuple[PromptMessage, ...]) -> list[tuple[int, tuple[str, Block]]]:
    return list(
        chain.from_iterable(
            ((index, (message.role, block)) for block in message.blocks)
            for index, message in enumerate(messages)
        )
    )
