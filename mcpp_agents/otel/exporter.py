"""Follows a pod and exports its contexts, at least once each: the log holds what is not exported.

While the collector does not answer, nothing is read. The connection then resumes where it was, so
memory is bounded however long that takes.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import msgspec
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from mcpp import Gap, McppError, Message, Options, Pod
from mcpp.kinds import is_live
from mcpp.times import read_timestamp
from mcpp_agents.otel.contexts import ContextLog, TracedContext
from mcpp_agents.otel.spans import span_of
from mcpp_agents.otel.state import ExportState, write_state

_BATCH_SPANS: Final = 512
_BATCH_SECONDS: Final = 1.0
# How old the stored position may be while nothing is exported.
_STORE_SECONDS: Final = 10.0
# For what is left when the process is asked to end.
_LAST_SECONDS: Final = 5.0

logger = logging.getLogger("mcpp.otel")


class ContextExporter:
    """Exports the contexts of one pod. Owns the spans that wait, and the position in the log."""

    def __init__(
        self,
        exporter: SpanExporter,
        state: ExportState,
        path: Path | None = None,
        *,
        backoff: Callable[[int], float] = Options().backoff,  # noqa: B008  (frozen)
    ) -> None:
        self._exporter = exporter
        self._path = path
        self._backoff = backoff
        self._pod = state.pod
        self._after = state.after
        self._contexts = ContextLog(state.contexts)
        self._waiting: list[TracedContext] = []
        self._stored = self._after
        self._due = anyio.current_time() + _STORE_SECONDS

    async def follow(self, pod: Pod) -> None:
        """Export what ends in a pod, until cancelled.

        Raises McppError for a state that is of another pod.
        """
        if self._pod not in ("", pod.name):
            raise McppError(f"{self._path} is of the pod {self._pod!r}, not of {pod.name!r}")
        self._pod = pod.name
        self._contexts.learn(pod.contexts.values())
        try:
            while True:
                item: Message | Gap | None = None
                with anyio.move_on_at(self._due):
                    item = await pod.next()
                if item is not None:
                    self._add(item, pod)
                if anyio.current_time() >= self._due or len(self._waiting) >= _BATCH_SPANS:
                    await self._flush()
        finally:
            with anyio.move_on_after(_LAST_SECONDS, shield=True):
                await self._flush()

    def _add(self, item: Message | Gap, pod: Pod) -> None:
        if isinstance(item, Gap):
            logger.warning("envelopes were missed; what ended meanwhile has the state unknown")
            ended = self._contexts.lose(pod.contexts)
        elif is_live(item.kind):
            return
        else:
            ended = self._contexts.add(item.envelope, _time_of(item))
            self._after = item.id
        if ended and not self._waiting:
            self._due = min(self._due, anyio.current_time() + _BATCH_SECONDS)
        self._waiting += ended

    async def _flush(self) -> None:
        """Export what waits, again until that succeeds; then store how far it came."""
        attempt = 0
        while self._waiting:
            batch = [span_of(context, self._pod) for context in self._waiting[:_BATCH_SPANS]]
            result = await anyio.to_thread.run_sync(
                self._exporter.export, batch, abandon_on_cancel=True
            )
            if result is SpanExportResult.SUCCESS:
                del self._waiting[: len(batch)]
                attempt = 0
                continue
            attempt += 1
            seconds = self._backoff(attempt)
            logger.warning("%d spans were not taken; trying again in %.0f s", len(batch), seconds)
            await anyio.sleep(seconds)
        self._due = anyio.current_time() + _STORE_SECONDS
        if self._path is not None and self._after != self._stored:
            state = ExportState(
                pod=self._pod, after=self._after, contexts=list(self._contexts.open.values())
            )
            written = self._after
            await anyio.to_thread.run_sync(write_state, self._path, msgspec.json.encode(state))
            self._stored = written


def _time_of(message: Message) -> int:
    """Return when a message was sent, in nanoseconds: by our clock, or as an old one says itself.

    Senders write `ts`: a time in the future, or before 1970, is of no use.
    """
    now = time.time_ns()
    if message.replayed:
        said = read_timestamp(message.envelope.ts).timestamp()
        return min(max(int(said * 1e9), 0), now)
    return now
