"""The queue of memories to store: at once, or after a model has summarized them."""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from mcpp_agents.memory.bus.extracted_memory import ExtractedMemory
from mcpp_agents.memory.bus.recorder import Recorder

if TYPE_CHECKING:
    from mcpp_agents.memory.bus.summarizer import Summarizer

_MAX_WAITING: Final = 64


class WriteQueue:
    """Stores memories in order. It owns those that wait for the summarizer."""

    def __init__(self, recorder: Recorder, summarizer: "Summarizer | None" = None) -> None:
        self._recorder = recorder
        self._summarizer = summarizer
        self._waiting: deque[ExtractedMemory] = deque()
        self._added = anyio.Event()

    async def put(self, memories: Iterable[ExtractedMemory]) -> None:
        """Store memories; with a summarizer, leave them to `run` unless the queue is full."""
        for memory in memories:
            if self._summarizer is None or len(self._waiting) >= _MAX_WAITING:
                await self._store(memory)
            else:
                self._waiting.append(memory)
                self._added.set()

    async def flush(self) -> None:
        """Store what waits, without summaries."""
        while self._waiting:
            await self._store(self._waiting.popleft())

    async def run(self) -> None:
        """Summarize and store waiting memories until cancelled.

        On cancellation, the rest is stored with the extractive summaries.
        """
        try:
            while True:
                while self._waiting:
                    summarized = memory = self._waiting.popleft()
                    try:
                        summarized = await self._summarize(memory)
                    finally:
                        await self._store(summarized)
                self._added = anyio.Event()
                await self._added.wait()
        finally:
            await self.flush()

    async def _summarize(self, memory: ExtractedMemory) -> ExtractedMemory:
        if self._summarizer is None or not memory.turns:
            return memory
        if await anyio.to_thread.run_sync(self._recorder.has, memory):
            return memory  # the same log is read again: do not pay twice
        summary = await self._summarizer.summarize(memory.turns)
        return memory.with_model_summary(summary, self._summarizer.name) if summary else memory

    async def _store(self, memory: ExtractedMemory) -> None:
        with anyio.CancelScope(shield=True):
            # In a thread: waiting for a lock or the disk must not block the connection.
            await anyio.to_thread.run_sync(self._recorder.record, [memory])
