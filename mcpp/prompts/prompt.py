"""A finished prompt: rendered for each API, with a report of how it was reduced."""

from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Any, Final

import msgspec

from mcpp.prompts import quoting, render
from mcpp.prompts.blocks import Block, PromptMessage, block_tokens, total_tokens
from mcpp.prompts.draft import SUMMARIZED, Changed, LeftOut, PromptDraft, omission
from mcpp.prompts.entries import PromptEntry
from mcpp.prompts.turns import to_messages
from mcpp.protocol.envelope import Envelope
from mcpp.tokens import Counter
from mcpp.transient.calls import failure
from mcpp.transient.marks import transient


class Report(msgspec.Struct, frozen=True):
    """The size of a prompt and what was changed or left out.

    `first_changed` is the index of the first message that differs from the previous prompt or, if
    none was given, from this prompt without reductions. `cache_lost` is the number of tokens of
    that other prompt which its cache can no longer serve.
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
        # Not the prompt itself, or each prompt would keep all previous ones alive.
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

    def markdown(self, *, system: bool = True) -> str:
        """Return the prompt as Markdown for people, with or without the system text."""
        return render.markdown(self.system if system else None, self.messages)

    @cached_property
    def tokens(self) -> int:
        """Tokens of the prompt by its counter: with the system text, without tool definitions."""
        return self._count(self.system) + total_tokens(self.messages, self._count)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of the system text and all messages, in hexadecimal."""
        return sha256(msgspec.json.encode((self.system, self.messages))).hexdigest()

    @cached_property
    def report(self) -> Report:
        """Reductions and their effect. Computed on first use, since it counts every token."""
        unreduced = to_messages((entry, entry.full_block()) for entry in self._draft.entries)
        system, reference = self._previous or (self.system, unreduced)
        if system == self.system:
            first, lost = _difference(reference, self.messages, self._count)
        else:  # the system text precedes all messages
            first, lost = 0, self._count(system) + total_tokens(reference, self._count)
        return Report(
            tokens_before=self._count(self.system) + total_tokens(unreduced, self._count),
            tokens_after=self.tokens,
            changed=tuple(self._draft.changed.values()),
            left_out=self._left_out + tuple(self._draft.left_out.values()),
            first_changed=first,
            cache_lost=lost,
        )

    @cached_property
    def summaries(self) -> int:
        """The number of summaries of open contexts that this prompt shows."""
        return sum(change.reason == SUMMARIZED for change in self._draft.changed.values())

    @cached_property
    def handles(self) -> frozenset[str]:
        """The handles that this prompt shows."""
        return frozenset(change.handle for change in self._draft.changed.values())

    def originals(self, handle: str) -> tuple[Envelope, ...]:
        """Return the original envelopes behind a handle; an unknown handle has none."""
        return tuple(entry.envelope for entry in self._entries_behind(handle))

    def expand(self, handle: str) -> dict[str, Any]:
        """Return the result of the `expand` tool: the original content, marked as transient.

        Publish it as the response to a call that the viewer addressed to itself, so that the log
        contains it like any other result. A result of the viewer's own call is returned without
        its `_meta`: those marks were the server's, and would now count as the viewer's. Everything
        else is quoted. Of a folded context, consumed results stay collapsed, each with a handle of
        its own (T-26).
        """
        entries = self._entries_behind(handle)
        if not entries:
            return failure(f"Unknown handle: {quoting.name(str(handle))}.")
        first = entries[0]
        if len(entries) == 1 and first.kind == "result" and first.call is not None:
            result = first.call.original()
            result.pop("_meta", None)
            return transient(result)
        lines = [
            f"@{quoting.name(one.envelope.sender)} ({quoting.name(one.envelope.kind)}):\n"
            + (
                one.collapsed_text()
                if one.is_settled and one.handle != handle
                else quoting.quote(bytes(one.envelope.raw_payload).decode())
            )
            for one in entries
        ]
        pictures = entries[0].pictures if len(entries) == 1 else ()
        content: list[dict[str, Any]] = [{"type": "text", "text": "\n".join(lines)}]
        content += [
            {"type": "image", "data": one.data, "mimeType": one.media_type} for one in pictures
        ]
        return transient({"content": content})

    def _entries_behind(self, handle: object) -> tuple[PromptEntry, ...]:
        if not isinstance(handle, str):  # a model wrote it
            return ()
        if handle in self.handles:
            return self._draft.originals[handle]
        return self._draft.folded_results.get(handle, ())

    @property
    def _count(self) -> Counter:
        return self._draft.count


def _difference(
    before: tuple[PromptMessage, ...], after: tuple[PromptMessage, ...], count: Counter
) -> tuple[int | None, int]:
    """Return the index of the first differing message, and the tokens of `before` from there on."""
    old, new = _flat(before), _flat(after)
    same = 0
    for (_, one), (_, other) in zip(old, new, strict=False):
        if one != other:
            break
        same += 1
    if same == len(old):
        return None, 0
    index = new[same][0] if same < len(new) else len(after)
    return index, sum(block_tokens(block, count) for _, (_, block) in old[same:])


def _flat(messages: tuple[PromptMessage, ...]) -> list[tuple[int, tuple[str, Block]]]:
    return list(
        chain.from_iterable(
            ((index, (message.role, block)) for block in message.blocks)
            for index, message in enumerate(messages)
        )
    )
