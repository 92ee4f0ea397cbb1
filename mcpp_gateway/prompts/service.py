"""Serves prompts to signed-in participants (H-40): one at a time, bounded in time and size.

Askers have their turns one after the other, and none of them can take all places in the queue.
"""

import asyncio
import json
import logging
import re
import sys
from collections.abc import Callable
from typing import Final, Protocol, TypeVar
from urllib.parse import parse_qs

import msgspec

from mcpp.agent.shares import FairLimiter, Shares
from mcpp.protocol.envelope import PARTICIPANT_PATTERN
from mcpp_gateway.core.history.pages import Source
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.prompts.reading import PromptReading, UnknownEnvelopeError
from mcpp_gateway.prompts.task import Task

logger = logging.getLogger("mcpp.gateway")

T = TypeVar("T")

_is_participant: Final = re.compile(PARTICIPANT_PATTERN).fullmatch

PROMPT_SECONDS: Final = 20.0
_MAX_BUDGET: Final = 1_000_000
_PLACES: Final = 8  # of all askers; one that is alone gets half of them


class PromptError(Exception):
    """A request that is not answered with a prompt: an HTTP status and the reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class ReadableLogs(Protocol):
    """Logs that are not in memory."""

    def read(self, pod: PodCore, function: Callable[[Source], T]) -> "asyncio.Future[T]":
        """Call a function with a pod's log, on another thread."""


class PromptService:
    """Computes prompts in a process for each. Owns the queue of those that wait."""

    def __init__(self, logs: Callable[[], ReadableLogs | None]) -> None:
        self._logs = logs
        self._turns = FairLimiter(1)
        self._places = Shares(_PLACES)

    async def answer(self, pod: PodCore, asker: str, query: str) -> bytes:
        """Return the prompt that a query asks for, as JSON. Raises PromptError."""
        viewer, at, budget = _parse(query)
        requester = f"{pod.name}/{asker}"
        if not self._places.take(requester):
            raise PromptError(429, "too many prompts are being computed; try again soon")
        try:
            async with asyncio.timeout(PROMPT_SECONDS), self._turns.place(requester):
                reading = PromptReading([pod.members.rights(asker), pod.members.rights(viewer)], at)
                await self._read(pod, reading)
                texts = reading.texts[::-1]
                return await _compute(Task(viewer=viewer, token_budget=budget, texts=texts))
        except TimeoutError:
            raise PromptError(503, "the prompt takes too long to compute") from None
        except UnknownEnvelopeError:
            raise PromptError(404, "at: not an envelope of the log that you may read") from None
        except UnreadableError:
            raise PromptError(503, "the log cannot be read") from None
        finally:
            self._places.release(requester)

    async def _read(self, pod: PodCore, reading: PromptReading) -> None:
        while (source := pod.memory_source()) is not None:
            if not reading.read(source):
                return
            await asyncio.sleep(0)  # other participants come first
        logs = self._logs()
        assert logs is not None
        await logs.read(pod, reading.read_all)


def _parse(query: str) -> tuple[str, str | None, int | None]:
    try:
        options = parse_qs(query, max_num_fields=8)
    except ValueError:
        raise PromptError(400, "too many parameters") from None
    viewer = options.get("viewer", [""])[0]
    if not _is_participant(viewer):
        raise PromptError(400, "viewer: the name of a participant is missing")
    at = options["at"][0] if "at" in options else None
    if "budget" not in options:
        return viewer, at, None
    budget = options["budget"][0]
    if not (budget.isascii() and budget.isdigit() and 1 <= int(budget[:9]) <= _MAX_BUDGET):
        raise PromptError(400, f"budget: must be a number from 1 to {_MAX_BUDGET}")
    return viewer, at, int(budget)


async def _compute(task: Task) -> bytes:
    try:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "mcpp_gateway.prompts.worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:  # a limit on processes, or this Python is being replaced
        logger.error("a prompt cannot be computed: %s", error)  # noqa: TRY400
        raise PromptError(503, "the prompt cannot be computed now") from None
    try:
        output, errors = await process.communicate(msgspec.msgpack.encode(task))
    finally:
        if process.returncode is None:  # it takes too long, or the client has left
            process.kill()
            await process.wait()
    if process.returncode:
        logger.error("a prompt cannot be computed: %s", errors.decode(errors="replace")[-2000:])
        raise PromptError(500, "the prompt cannot be computed")
    problem = json.loads(output).get("problem")
    if problem:
        raise PromptError(422, problem)
    return output
