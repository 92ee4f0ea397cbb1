"""How far a model is with a question, told to whoever watches while it waits, thinks and writes.

As MCP tells progress: `notifications/progress` in the context of the reasoning, for the question's
id. Prompts leave it out; a terminal and the inspector show it.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

import anyio

from mcpp import ContextScope, Message, Refused, kinds
from mcpp.kinds import Kind
from mcpp.protocol import rpc

# Often enough to see it live, seldom enough not to fill the log.
_EVERY_SECONDS: Final = 2.0
_SHOWN_CHARACTERS: Final = 80
_KIND: Final = str(Kind(kinds.NOTIFICATION, "notifications/progress"))


class ProgressReporter:
    """The progress on one question. Owns what was written so far, as far as it is shown."""

    def __init__(
        self, thinking: ContextScope, question: Message, clock: Callable[[], float] = monotonic
    ) -> None:
        self.thinking = thinking
        self.question = question
        self._clock = clock
        self._characters = 0
        self._end = ""
        self._due = 0.0
        self._allowed = True
        self._was_told = False

    async def begin(self) -> None:
        """Say that the question has been taken up."""
        await self._tell_now("thinking")

    async def remind(self, message: str) -> None:
        """Say something where nothing was told since the last time that this was called."""
        if not self._was_told:
            await self._tell_now(message)
        self._was_told = False

    async def hear(self, text: str) -> None:
        """Take what the model writes next; tell now and then."""
        self._characters += len(text)
        self._end = (self._end + text)[-_SHOWN_CHARACTERS:]
        if self._allowed and self._clock() >= self._due:
            await self._tell("… " + " ".join(self._end.split()), wait=False)

    async def wait(self, seconds: float) -> None:
        """Wait until the model can be asked again, and say so."""
        if self._allowed:
            await self._tell(f"the model's API asks to wait {seconds:.0f} s", wait=False)
        await anyio.sleep(seconds)

    async def _tell_now(self, message: str) -> None:
        if self._allowed:
            try:
                await self._tell(message, wait=True)
            except Refused:
                self._allowed = False  # it is for those who watch: without it goes, too

    async def _tell(self, message: str, *, wait: bool) -> None:
        self._was_told = True
        self._due = self._clock() + _EVERY_SECONDS
        told = {
            "progressToken": self.question.id,
            "progress": self._characters,
            "message": message,
        }
        await self.thinking.send(
            _KIND,
            rpc.notification("notifications/progress", told),
            to=[self.question.sender],
            correlation_id=self.question.id,
            wait=wait,
        )
