"""Recorded model calls: run a model agent in tests without a model and without a network.

with RecordedModel("incident.model.jsonl") as model:
    await recording("incident.jsonl").check(ModelAgent("helper", model).participant)

With a provider, `RecordedModel` passes calls on to it and records them; without one it replays them
in their order. A replayed call is compared with the prompt that was recorded, apart from ids.
"""

import difflib
import re
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from mcpp.prompts import Prompt
from mcpp.testing import DivergedError, Divergence, RecordingError
from mcpp_agents.model.providers import (
    OnText,
    Provider,
    ProviderError,
    Reply,
    Tools,
    ignore_text,
)

# Ids and what is derived from them are new in every run.
_ID: Final = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?<=call-)[0-9a-f]{32}|(?<=handle )[0-9a-f]{8,}"
)


class RecordedCall(msgspec.Struct, omit_defaults=True):
    """One call of a model: the prompt as Markdown, and the reply or the error."""

    prompt: str
    reply: Reply | None = None
    error: str | None = None
    retry_seconds: float | None = None


_decode: Final = msgspec.json.Decoder(RecordedCall).decode


class RecordedModel:
    """A provider that records another one's calls in a file, or replays the file.

    Args:
        path: the file, one call a line.
        provider: the provider to record; the file is replaced. None replays the file.
        compare_prompts: whether a replayed call must be given the prompt that was recorded.

    Raises RecordingError for a line that is no call, and OSError.
    """

    def __init__(
        self, path: str | Path, provider: Provider | None = None, *, compare_prompts: bool = True
    ) -> None:
        self.divergences: list[Divergence] = []
        self._path = Path(path)
        self._provider = provider
        self._compare_prompts = compare_prompts
        self._calls = [] if provider is not None else _read(self._path)
        self._made = 0
        if provider is not None:
            self._path.write_bytes(b"")

    async def reply(
        self, prompt: Prompt, tools: Tools, max_tokens: int, on_text: OnText = ignore_text
    ) -> Reply:
        """Return the model's reply, or the recorded one. Raises ProviderError."""
        if self._provider is None:
            return await self._replay(prompt, on_text)
        call = RecordedCall(prompt.markdown())
        try:
            call.reply = await self._provider.reply(prompt, tools, max_tokens, on_text)
        except ProviderError as error:
            call.error, call.retry_seconds = str(error), error.retry_seconds
            raise
        finally:
            if call.reply is not None or call.error is not None:  # else it was cancelled
                with self._path.open("ab") as file:
                    file.write(msgspec.json.encode(call) + b"\n")
        return call.reply

    def check(self) -> None:
        """Raise DivergedError if the prompts were not those of the recording, or not as many."""
        left = [Divergence("missing", at) for at in range(self._made, len(self._calls))]
        if self.divergences or left:
            raise DivergedError(str(self._path), [*self.divergences, *left])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Check at the end of the block, unless it raises."""
        if error is None:
            self.check()

    async def _replay(self, prompt: Prompt, on_text: OnText) -> Reply:
        number, self._made = self._made, self._made + 1
        shown = prompt.markdown()
        if number >= len(self._calls):
            self.divergences.append(Divergence("unexpected", number, diff=shown))
            raise ProviderError("the recording has no more calls of the model")
        call = self._calls[number]
        before, after = _masked(call.prompt), _masked(shown)
        if self._compare_prompts and before != after:
            self.divergences.append(
                Divergence("different", number, diff=_difference(before, after))
            )
        if call.reply is None:
            raise ProviderError(call.error or "", call.retry_seconds)
        await on_text(call.reply.text)
        return call.reply


def _read(path: Path) -> list[RecordedCall]:
    calls = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            calls.append(_decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise RecordingError(f"{path}, line {number}", str(error)) from None
    return calls


def _difference(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "recorded", "now")
    return "\n".join(line.rstrip("\n") for line in lines)


def _masked(text: str) -> str:
    """Return the text with its ids numbered in the order of their occurrence."""
    numbers: dict[str, str] = {}

    def number(found: re.Match[Any]) -> str:
        return numbers.setdefault(found[0], f"<id {len(numbers) + 1}>")

    return _ID.sub(number, text)
