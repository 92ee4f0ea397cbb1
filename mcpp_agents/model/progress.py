"""Progress of a model's work on one question, as MCP progress notifications.

They are sent in the context of the reasoning, with the question's id as their token. Prompts leave
them out; `mcpp chat` and the inspector show them.
"""

from collections.abc import Callable
from time import monotonic
from typing import Final

import anyio

from mcpp import ContextScope, Kind, Message, Refused, kinds
from mcpp.protocol import rpc

# Often enough to look live, rarely enough not to fill the log.
_INTERVAL_SECONDS: Final = 2.0
_SHOWN_CHARACTERS: Final = 80
_KIND: Final = str(Kind(kinds.NOTIFICATION, "notifications/progress"))


class ProgressReporter:
    """Reports the progress on one question. Owns the end of the text written so far."""

    def __init__(
        self, thinking: ContextScope, question: Message, clock: Callable[[], float] = monotonic
    ) -> None:
        self.thinking = thinking
        self.question = question
        self.out = question.stream()  # the reply, shown while the model writes it
        self._clock = clock
        self._characters = 0
        self._end = ""
        self._due = 0.0
        self._allowed = True
        self._reported_recently = False

    async def start(self) -> None:
        """Report that work on the question has started."""
        await self._report_and_wait("thinking")

    async def keep_alive(self, message: str) -> None:
        """Report `message`, unless something was reported since the last call of this method."""
        if not self._reported_recently:
            await self._report_and_wait(message)
        self._reported_recently = False

    async def add_text(self, text: str) -> None:
        """Show the next piece of the reply, and report the end of it at intervals."""
        await self.out.write(text)
        self._characters += len(text)
        self._end = (self._end + text)[-_SHOWN_CHARACTERS:]
        if self._allowed and self._clock() >= self._due:
            await self._report("… " + " ".join(self._end.split()), wait=False)

    async def restart(self) -> None:
        """Take back what was shown of the reply: the model begins again, or goes on otherwise."""
        await self.out.end()
        self.out = self.question.stream()

    async def wait_for_retry(self, seconds: float) -> None:
        """Report that the model's API asks for a delay, and wait for it."""
        if self._allowed:
            await self._report(f"the model's API asks to wait {seconds:.0f} s", wait=False)
        await anyio.sleep(seconds)

    async def _report_and_wait(self, message: str) -> None:
        if self._allowed:
            try:
                await self._report(message, wait=True)
            except Refused:
                self._allowed = False  # progress is optional

    async def _report(self, message: str, *, wait: bool) -> None:
        self._reported_recently = True
        self._due = self._clock() + _INTERVAL_SECONDS
        params = {
            "progressToken": self.question.id,
            "progress": self._characters,
            "message": message,
        }
        await self.thinking.send(
            _KIND,
            rpc.notification("notifications/progress", params),
            to=[self.question.sender],
            correlation_id=self.question.id,
            wait=wait,
        )
