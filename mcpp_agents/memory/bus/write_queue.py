"""The queue of memories to store: at once, or after a model has summarized them."""

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, TypeAlias

import anyio
import anyio.to_thread

from mcpp_agents.memory.bus.envelope_text import attribute_lines
from mcpp_agents.memory.bus.extracted_memory import ExtractedMemory
from mcpp_agents.memory.bus.recorder import Recorder
from mcpp_agents.memory.bus.summaries.rolling import EndedSummary, RollingSummary

if TYPE_CHECKING:
    from mcpp_agents.memory.bus.summaries.summarizer import Summarizer

_MAX_WAITING: Final = 64


Write: TypeAlias = ExtractedMemory | RollingSummary | EndedSummary


class WriteQueue:
    """Stores memories in order. It owns those that wait for the summarizer."""

    def __init__(self, recorder: Recorder, summarizer: "Summarizer | None" = None) -> None:
        self._recorder = recorder
        self._summarizer = summarizer
        self._waiting: deque[Write] = deque()
        self._current: Write | None = None  # being summarized
        self._added = anyio.Event()
        self._storing = anyio.Lock()

    async def put(self, writes: Iterable[Write]) -> None:
        """Store memories; with a summarizer, leave them to `run` unless the queue is full."""
        for write in writes:
            if not isinstance(write, ExtractedMemory):
                self._drop_earlier(write.context)
            if self._summarizer is None or len(self._waiting) >= _MAX_WAITING:
                await self._store(write)
            else:
                self._waiting.append(write)
                self._added.set()

    async def flush(self) -> None:
        """Store what waits, and what is being summarized, without summaries of a model."""
        if self._current is not None:
            self._waiting.appendleft(self._current)
            self._current = None
        while self._waiting:
            await self._store(self._waiting.popleft())
        with anyio.CancelScope(shield=True):
            async with self._storing:
                pass  # `run` may be storing one

    async def run(self) -> None:
        """Summarize and store waiting memories until cancelled.

        On cancellation, the rest is stored with the extractive summaries.
        """
        try:
            while True:
                while self._waiting:
                    self._current = write = self._waiting.popleft()
                    summarized = await self._summarize(write)
                    if self._current is write:  # else it was stored or dropped meanwhile
                        self._current = None
                        await self._store(summarized)
                self._added = anyio.Event()
                await self._added.wait()
        finally:
            await self.flush()

    def _drop_earlier(self, context: str) -> None:
        """Drop waiting summaries of a context: a later one, or its end, replaces them."""
        kept = [one for one in self._waiting if not _is_summary_of(one, context)]
        self._waiting = deque(kept)
        if self._current is not None and _is_summary_of(self._current, context):
            self._current = None

    async def _summarize(self, write: Write) -> Write:
        if self._summarizer is None or isinstance(write, EndedSummary):
            return write
        if isinstance(write, RollingSummary):
            return await self._summarize_open(write, self._summarizer)
        if not write.turns:
            return write
        if await anyio.to_thread.run_sync(self._recorder.has, write):
            return write  # the same log is read again: do not pay twice
        summary = await self._summarizer.summarize(write.turns)
        return write.with_model_summary(summary, self._summarizer.name) if summary else write

    async def _summarize_open(
        self, write: RollingSummary, summarizer: "Summarizer"
    ) -> RollingSummary:
        last, text, author = await anyio.to_thread.run_sync(self._recorder.previous_summary, write)
        if author and last == write.step.cover.last:  # the same log is read again
            return write.with_model_summary(text, author)
        previous = text if author and last == write.step.base else None
        summary = await summarizer.summarize(write.turns_after(previous, author))
        if summary is None:
            return write
        return write.with_model_summary(attribute_lines(summarizer.name, summary), summarizer.name)

    async def _store(self, write: Write) -> None:
        with anyio.CancelScope(shield=True):
            async with self._storing:
                # In a thread: waiting for a lock or the disk must not block the connection.
                if isinstance(write, ExtractedMemory):
                    await anyio.to_thread.run_sync(self._recorder.record, [write])
                else:
                    await anyio.to_thread.run_sync(self._recorder.record_summary, write)


def _is_summary_of(write: Write, context: str) -> bool:
    return isinstance(write, RollingSummary | EndedSummary) and write.context == context
