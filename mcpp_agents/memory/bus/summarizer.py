"""Summaries by a model, where one is configured; whatever goes wrong, the extractive one stays.

The model is shown the talk as quotation and has nothing to call: whatever a participant writes for
it, it can only make a summary worse. What it answers is text like any other's: bounded, without
secrets, and told in the model's own name.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

import mcpp
from mcpp import kinds
from mcpp.prompts import BudgetError, Prompt, PromptBuilder
from mcpp_agents.memory.bus.summary import MAX_SUMMARY_CHARS, Turn
from mcpp_agents.memory.redaction import redact
from mcpp_agents.memory.requests import clean
from mcpp_agents.model.providers import Provider, ProviderError

_log = logging.getLogger(__name__)

# Nobody in a pod can be called so: nothing that was said is taken for the model's own words.
_VIEWER: Final = "system:memory"
_MAX_TOKEN_CHARS: Final = 32
_SYSTEM: Final = (
    "You keep the memory of this room. Summarise the talk below for those who will work on the"
    " same matter later: what was found, tried, decided and left open, with its reasons, names"
    " and numbers. Say only what was said. Write plain sentences, 150 words at most, and nothing"
    " but the summary."
)


@dataclass(frozen=True, kw_only=True)
class SummarizerLimits:
    """What summaries may cost."""

    prompt_tokens: int = 8_000  # of a longer talk the end is shown
    reply_tokens: int = 500
    hourly_tokens: int = 200_000  # after that, and until the hour is over, no model is asked
    reply_seconds: float = 60.0
    rest_seconds: float = 60.0  # how long a model that failed is left alone


class Summarizer:
    """Summarises talks by a model. It owns the account of what that has cost."""

    def __init__(
        self,
        provider: Provider,
        *,
        name: str,
        limits: SummarizerLimits = SummarizerLimits(),  # noqa: B008  (frozen)
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name: Final = name
        self._provider = provider
        self._limits = limits
        self._clock = clock
        self._hour_began = clock()
        self._spent = 0
        self._resting_until = clock()

    async def summarize(self, turns: Sequence[Turn]) -> str | None:
        """The model's summary of a talk; None where there is none to be had now."""
        now = self._clock()
        if now - self._hour_began >= 3600:
            self._hour_began, self._spent = now, 0
        if not turns or now < self._resting_until:
            return None
        try:
            prompt = self._prompt(turns)
            if self._spent + prompt.tokens + self._limits.reply_tokens > self._limits.hourly_tokens:
                _log.warning("no model is asked until the hour is over: its tokens are spent")
                return None
            with anyio.fail_after(self._limits.reply_seconds):
                return await self._ask(prompt)
        except TimeoutError:
            _log.warning("%s gives no summary in time", self.name)
        except (ProviderError, BudgetError) as error:
            _log.warning("%s gives no summary: %s", self.name, error)
        except Exception:
            # Whatever stands behind an address must not end the memory of a pod.
            _log.exception("%s gives no summary", self.name)
        self._resting_until = self._clock() + self._limits.rest_seconds
        return None

    async def _ask(self, prompt: Prompt) -> str | None:
        # Charged before it is asked, because an answer that never comes may cost as much.
        charged = prompt.tokens + self._limits.reply_tokens
        self._spent += charged
        room = self._limits.reply_tokens * _MAX_TOKEN_CHARS

        async def measure(text: str) -> None:
            # Whatever stands behind the address may not care how much was asked for.
            nonlocal room
            room -= len(text)
            if room < 0:
                raise ProviderError("it says far more than it was asked for")

        reply = await self._provider.reply(prompt, (), self._limits.reply_tokens, measure)
        if reply.tokens:
            self._spent += reply.tokens - charged
        return redact(clean(reply.text)).strip()[:MAX_SUMMARY_CHARS] or None

    def _prompt(self, turns: Sequence[Turn]) -> Prompt:
        builder = PromptBuilder(
            _VIEWER, system=_SYSTEM, token_budget=self._limits.prompt_tokens, cache=None
        )
        for turn in turns:
            said = {"text": turn.text}
            builder.add(mcpp.new_envelope(kinds.CHAT, said, sender=turn.speaker))
        return builder.build()
