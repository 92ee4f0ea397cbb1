"""The prompts for one question at a time, built from the agent's copy of the log.

Other participants' messages that arrive while a question is answered get a share of the prompt, and
the question is pinned, so that none of them can push it out.
"""

import math
from typing import Final

import anyio

from mcpp import Envelope, Pod
from mcpp.prompts import CachePolicy, Prompt, PromptBuilder
from mcpp.tokens import estimate
from mcpp_agents.model.limits import ModelLimits

# At twice this many envelopes the older half of the log is dropped, to bound memory.
_MAX_ENVELOPES: Final = 10_000
_MAX_IDS: Final = 4096
_CATCH_UP_SECONDS: Final = 5.0
# One part in so many of the prompt is for messages that arrive while a question is answered.
_MEANWHILE_SHARE: Final = 4
# T-28: a collapse that saves nothing in any further call is never worth its price.
_CACHE_POLICIES: Final = {
    "always": None,
    "cache": CachePolicy(),
    "never": CachePolicy(further_calls=0),
}


class RecentIds:
    """A set of ids that forgets the oldest ones beyond a limit."""

    def __init__(self, limit: int = _MAX_IDS) -> None:
        self._ids: dict[str, None] = {}
        self._limit = limit

    def add(self, id: str) -> None:
        """Add an id as the newest one."""
        self._ids[id] = None
        if len(self._ids) > self._limit:
            del self._ids[next(iter(self._ids))]

    def __contains__(self, id: object) -> bool:
        return id in self._ids


class LogPrompts:
    """Builds prompts from a copy of the log. Owns the copy and the prompt in use."""

    def __init__(self, pod: Pod, *, limits: ModelLimits, system: str) -> None:
        self._pod = pod
        self._token_budget = limits.prompt_tokens
        self._cache = _CACHE_POLICIES[limits.collapse]
        self._system = system
        self._log: list[Envelope] = []
        self._builder: PromptBuilder | None = None
        self._prompt: Prompt | None = None
        self._room: float = 0
        self._observed = RecentIds()
        self._moved = anyio.Event()
        self._start_position = pod.position

    def add(self, envelope: Envelope, *, is_answering: bool) -> None:
        """Add an envelope to the log, and to the prompt if a question is being answered."""
        self._log.append(envelope)
        if is_answering and self._builder is not None:
            self._builder.add(envelope)
        if len(self._log) >= 2 * _MAX_ENVELOPES:
            del self._log[:_MAX_ENVELOPES]
        self._observed.add(envelope.id)
        self._moved.set()

    def start(self, question: Envelope, remembered: str = "") -> None:
        """Start the prompts for a question with the log up to now, and what is remembered."""
        budget = self._token_budget
        # A question that would fill the prompt is not pinned, so that it is shortened.
        is_short = _tokens(question) <= budget // 2
        self._builder = PromptBuilder(
            self._pod.me,
            filter=self._has_room,
            contexts="fold",
            token_budget=budget,
            pins=[question.id] if is_short else (),
            system="\n\n".join(filter(None, (self._system, remembered))),
            cache=self._cache,
        )
        self._room = math.inf
        for envelope in (*self._log, question):  # the log may have dropped it while it waited
            self._builder.add(envelope)
        self._room = budget // _MEANWHILE_SHARE

    async def next(self) -> Prompt:
        """Return the next prompt for the question, with everything received so far."""
        assert self._builder is not None, "call start() first"
        await self._catch_up()
        self._prompt = self._builder.build(previous=self._prompt)
        return self._prompt

    def expand(self, handle: str) -> object:
        """Return what the latest prompt has collapsed under a handle; None without a prompt."""
        return None if self._prompt is None else self._prompt.expand(handle)

    def _has_room(self, envelope: Envelope) -> bool:
        if envelope.sender == self._pod.me or self._room == math.inf:
            return True
        tokens = _tokens(envelope)
        has_room = tokens <= self._room
        self._room -= tokens if has_room else 0
        return has_room

    async def _catch_up(self) -> None:
        """Wait until everything received so far has been observed."""
        target = self._pod.position
        # After a reconnection the position may be our own join, which only others receive.
        with anyio.move_on_after(_CATCH_UP_SECONDS):
            while not (target in (None, self._start_position) or target in self._observed):
                self._moved = anyio.Event()
                await self._moved.wait()


def _tokens(envelope: Envelope) -> int:
    return estimate(bytes(envelope.raw_payload).decode())
