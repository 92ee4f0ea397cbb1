"""The prompts for one question at a time, from the agent's copy of the log."""

import logging
from collections.abc import Sequence
from typing import Any, Final

import anyio
import msgspec

from mcpp import Envelope, McppError, Pod
from mcpp.buffers import MAX_LOG_BYTES, BoundedQueue
from mcpp.model_prompts import ModelPrompt, PictureChoice, PromptRecord
from mcpp.prompts import ContextSummary, Prompt
from mcpp_agents.model.limits import ModelLimits
from mcpp_agents.pictures import fetch_pictures
from mcpp_agents.recent_ids import RecentIds

# The copy of the log beyond which the oldest envelopes are dropped.
_MAX_ENVELOPES: Final = 10_000
_CATCH_UP_SECONDS: Final = 5.0

logger = logging.getLogger("mcpp.model")


class LogPrompts:
    """Builds prompts from a copy of the log. Owns the copy, the prompt in use and its pictures."""

    def __init__(self, pod: Pod, *, limits: ModelLimits, system: str) -> None:
        self._pod = pod
        self._token_budget = limits.prompt_tokens
        self._collapse = limits.collapse
        self._system = system
        self._log = BoundedQueue[Envelope](_MAX_ENVELOPES, MAX_LOG_BYTES)
        self._growing: ModelPrompt | None = None
        self._begun: list[Envelope] = []  # the log when the question was taken up
        self._later: list[Envelope] = []  # what has come since, and is in no prompt yet
        self._starts = 0
        self._choice = PictureChoice(pod.me)
        self._pictures: dict[str, bytes] = {}
        self._prompt: Prompt | None = None
        self._record: PromptRecord | None = None
        self._observed = RecentIds()
        self._moved = anyio.Event()
        self._start_position = pod.position
        self._question: Envelope | None = None
        self._remembered = ""
        self._summaries: Sequence[ContextSummary] = ()
        self._added = 0
        self._reloads = 0

    def add(self, envelope: Envelope, *, is_answering: bool) -> None:
        """Add an envelope to the log, and to the prompt if a question is being answered."""
        self._log.push(envelope, envelope.size_bytes)
        self._added += 1
        if is_answering and self._question is not None:
            self._later.append(envelope)
        self._observed.add(envelope.id)
        self._moved.set()

    def start(
        self,
        question: Envelope,
        remembered: str = "",
        summaries: Sequence[ContextSummary] = (),
    ) -> None:
        """Start the prompts for a question with the log up to now, and what is remembered."""
        self._record = None
        self._question = question
        self._remembered = remembered
        self._summaries = summaries
        self._begun, self._later = list(self._log), []
        self._growing = None
        self._starts += 1

    async def next(self) -> Prompt:
        """Return the next prompt for the question, with everything received so far."""
        await self._catch_up()
        growing = None
        while growing is None:
            while self._reloads:
                self._moved = anyio.Event()
                await self._moved.wait()
            growing = await self._grow()
        self._prompt = growing.build(previous=self._prompt)
        self._record = growing.record(self._prompt)
        return self._prompt

    async def _grow(self) -> ModelPrompt | None:
        """Return the prompt with everything received; None if the log was read again meanwhile."""
        starts = self._starts
        assert self._question is not None, "call start() first"
        if self._growing is None:
            choice = PictureChoice(self._pod.me)
            chosen = choice.begin(self._begun, self._question)
            pictures = await fetch_pictures(self._pod, chosen, self._pictures)
            if self._starts != starts or self._reloads:
                return None
            self._choice, self._pictures = choice, pictures
            self._growing = ModelPrompt(
                self._pod.me,
                self._begun,
                question=self._question,
                token_budget=self._token_budget,
                system=self._system,
                collapse=self._collapse,
                pictures=pictures,
                summaries=self._summaries,
                remembered=self._remembered,
            )
            self._begun = []
        later, self._later = self._later, []
        chosen = [each for envelope in later for each in self._choice.add(envelope)]
        self._pictures |= await fetch_pictures(self._pod, chosen)
        if self._starts != starts or self._reloads:
            return None
        for envelope in later:
            self._growing.add(envelope)
        return self._growing

    def forget_erased(self) -> None:
        """Read the copy of the log again: something in it was erased (H-10).

        Prompts wait for that. A question in progress goes on with what is left, without what was
        remembered; what its latest prompt has collapsed cannot be expanded any more, which would
        say it again.
        """
        self._reloads += 1
        self._pictures = {}
        self._prompt = None
        self._remembered, self._summaries = "", ()
        self._pod.start_soon(self._reload)

    async def _reload(self) -> None:
        added = self._added
        loaded: list[Envelope] = []
        try:
            newest = await self._pod.history(order="newest", limit=len(self._log)).all()
            loaded = [message.envelope for message in reversed(newest)]
        except McppError as error:
            logger.warning("dropped the copy of the log, of which a part was erased: %s", error)
        finally:
            self._replace(loaded, self._added - added)
            self._reloads -= 1
            self._moved.set()

    def _replace(self, loaded: list[Envelope], added: int) -> None:
        """Replace the copy of the log, except for what was added while it was read."""
        current = {envelope.id: envelope for envelope in loaded}
        later = list(self._log)[-added:] if added else []
        self._log.clear()
        for one in (*loaded, *(one for one in later if one.id not in current)):
            self._log.push(one, one.size_bytes)
        if self._question is not None:
            question = current.get(self._question.id, self._question)
            self.start(question, self._remembered, self._summaries)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata for the answer: which prompts produced it (P-38)."""
        return {} if self._record is None else {"prompt": msgspec.to_builtins(self._record)}

    def expand(self, handle: str) -> object:
        """Return what the latest prompt has collapsed under a handle; None without a prompt."""
        return None if self._prompt is None else self._prompt.expand(handle)

    async def _catch_up(self) -> None:
        """Wait until everything received so far has been observed."""
        target = self._pod.position
        # After a reconnection the position may be our own join, which only others receive.
        with anyio.move_on_after(_CATCH_UP_SECONDS):
            while not (target in (None, self._start_position) or target in self._observed):
                self._moved = anyio.Event()
                await self._moved.wait()
