"""When findings are kept: at once, or where a model tells them, as soon as it has."""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from mcpp_agents.memory.bus.findings import Finding
from mcpp_agents.memory.bus.recorder import Recorder

if TYPE_CHECKING:
    from mcpp_agents.memory.bus.summarizer import Summarizer

_MAX_WAITING: Final = 64


class WriteQueue:
    """Keeps findings in their order. It owns those that wait for the narrator."""

    def __init__(self, recorder: Recorder, narrator: "Summarizer | None" = None) -> None:
        self._recorder = recorder
        self._narrator = narrator
        self._waiting: deque[Finding] = deque()
        self._news = anyio.Event()

    async def keep(self, findings: Iterable[Finding]) -> None:
        """Keep what was found; with a narrator, leave it to `narrate`."""
        for finding in findings:
            if self._narrator is None or len(self._waiting) >= _MAX_WAITING:
                await self._record(finding)
            else:
                self._waiting.append(finding)
                self._news.set()

    async def narrate(self) -> None:
        """Have told what waits, while the pod goes on, and keep it.

        It ends only by being cancelled; what waits then is kept with the summaries it has.
        """
        try:
            while True:
                while self._waiting:
                    told = finding = self._waiting.popleft()
                    try:
                        told = await self._told(finding)
                    finally:
                        await self._record(told)
                self._news = anyio.Event()
                await self._news.wait()
        finally:
            while self._waiting:
                await self._record(self._waiting.popleft())

    async def _told(self, finding: Finding) -> Finding:
        if self._narrator is None or not finding.turns:
            return finding
        if await anyio.to_thread.run_sync(self._recorder.has, finding):
            return finding  # the same log is heard again: it need not be paid for twice
        summary = await self._narrator.summarize(finding.turns)
        return finding.retold(summary, self._narrator.name) if summary else finding

    async def _record(self, finding: Finding) -> None:
        with anyio.CancelScope(shield=True):
            # The database may wait for a lock or the disk; the connection must not.
            await anyio.to_thread.run_sync(self._recorder.record, [finding])
