"""Summaries by a model, if one is configured; on any error the extractive summary is kept.

The model sees the conversation as quotations, and no tool that it calls is called: a prompt
injection can only make a summary worse. Its answer is treated like any other text: bounded,
redacted, and attributed to the model (M-37).
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
from mcpp_agents.memory.bus.summaries.extractive_summary import MAX_SUMMARY_CHARS, SpokenTurn
from mcpp_agents.memory.redaction import redact
from mcpp_agents.memory.requests import clean
from mcpp_agents.model.providers import Provider, ProviderError

logger = logging.getLogger("mcpp.memory")

# No participant can have this name, so no turn is taken for the model's own.
_VIEWER: Final = "system:memory"
_MAX_TOKEN_CHARS: Final = 32  # bounds the characters of a reply
_SYSTEM: Final = (
    "You keep the memory of this pod. Summarise the conversation below for those who will work on"
    " the same subject later: what was found, tried, decided and left open, with reasons, names"
    " and numbers. State only what was said. Write plain sentences, 150 words at most, and nothing"
    " but the summary."
)


@dataclass(frozen=True, kw_only=True)
class SummarizerLimits:
    """Limits on the cost of summaries."""

    prompt_tokens: int = 8_000  # of a longer conversation the end is shown
    reply_tokens: int = 500
    hourly_tokens: int = 200_000  # then the model is not called until the hour is over
    reply_seconds: float = 60.0
    retry_seconds: float = 60.0  # pause after a failure


class Summarizer:
    """Summarizes conversations with a model. It owns the count of tokens used."""

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
        self._hour_started = clock()
        self._tokens_used = 0
        self._paused_until = clock()

    async def summarize(self, turns: Sequence[SpokenTurn]) -> str | None:
        """Return the model's summary of a conversation, None if it is not available now."""
        now = self._clock()
        if now - self._hour_started >= 3600:
            self._hour_started, self._tokens_used = now, 0
        if not turns or now < self._paused_until:
            return None
        try:
            prompt = self._prompt(turns)
            needed = prompt.tokens + self._limits.reply_tokens
            if self._tokens_used + needed > self._limits.hourly_tokens:
                logger.warning("model summaries are paused: the hourly token limit is reached")
                return None
            with anyio.fail_after(self._limits.reply_seconds):
                return await self._ask(prompt)
        except TimeoutError:
            logger.warning("%s: summary timed out", self.name)
        except (ProviderError, BudgetError) as error:
            logger.warning("%s: summary failed: %s", self.name, error)
        except Exception:
            # An error of a provider must not stop the memory of a pod.
            logger.exception("%s: summary failed", self.name)
        self._paused_until = self._clock() + self._limits.retry_seconds
        return None

    async def _ask(self, prompt: Prompt) -> str | None:
        # Charged before the call, because an answer that never arrives may cost as much.
        charged = prompt.tokens + self._limits.reply_tokens
        self._tokens_used += charged
        room = self._limits.reply_tokens * _MAX_TOKEN_CHARS

        async def measure(text: str) -> None:
            # A server may ignore the token limit.
            nonlocal room
            room -= len(text)
            if room < 0:
                raise ProviderError("the reply is far longer than requested")

        reply = await self._provider.reply(prompt, (), self._limits.reply_tokens, measure)
        if reply.tokens:
            self._tokens_used += reply.tokens - charged
        return redact(clean(reply.text)).strip()[:MAX_SUMMARY_CHARS] or None

    def _prompt(self, turns: Sequence[SpokenTurn]) -> Prompt:
        builder = PromptBuilder(
            _VIEWER, system=_SYSTEM, token_budget=self._limits.prompt_tokens, cache=None
        )
        for turn in turns:
            payload = {"text": turn.text}
            builder.add(mcpp.new_envelope(kinds.CHAT, payload, sender=turn.speaker))
        return builder.build()
