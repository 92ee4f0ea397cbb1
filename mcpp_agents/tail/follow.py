"""Following a pod: the last matching messages of its history, then live ones.

The history is either what the gateway replays on joining, or what `Pod.history` reads.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

import anyio

from mcpp import Envelope, HistoryIterator, Pod
from mcpp.buffers import BoundedQueue
from mcpp.client.tasks import background
from mcpp.filters import Filter, everything
from mcpp.kinds import is_live
from mcpp.protocol.contexts import ContextTracker

# More than can arrive between joining and the first page: the SDK buffers fewer.
_OVERLAP_MESSAGES: Final = 10_000


async def follow(
    pod: Pod,
    show: Callable[[Envelope], None],
    *,
    live: bool = True,
    filter: Filter = everything,
    last: int | None = None,
) -> None:
    """Show the last matching envelopes of the history, then live ones until the pod ends.

    Without `live`, return at the end of the history. Of a pod that was opened with `live=True`,
    live parts are shown, too.
    """
    held = BoundedQueue[Envelope](last)
    remaining = pod.replayed

    def show_held() -> None:
        while held:
            show(held.take())

    matches = _LocalFilter(pod, filter)
    async with background() as tasks:
        with anyio.CancelScope() as scope:

            async def stop_after_history() -> None:
                # Requests are sent only after the history has arrived (P-01), so this answer marks
                # its end. The reader below is cancelled only while it waits for more.
                await pod.set_filter(filter)
                scope.cancel()

            if not live:
                tasks.start_soon(stop_after_history)
            async for message in pod:
                if is_live(message.kind):
                    show(message.envelope)
                    continue
                wanted = matches(message.envelope)
                if message.replayed:
                    remaining -= 1
                    if wanted:
                        held.push(message.envelope, message.envelope.size_bytes)
                if not message.replayed or not remaining:
                    show_held()
                if wanted and not message.replayed:
                    show(message.envelope)
        show_held()


async def follow_past(
    pod: Pod,
    show: Callable[[Envelope], None],
    past: HistoryIterator,
    *,
    live: bool = True,
    filter: Filter = everything,
) -> None:
    """Show the messages of the past, then live ones until the pod ends.

    Each is shown once, although what was sent between joining and the first page is in both.
    """
    newest: deque[str] = deque(maxlen=_OVERLAP_MESSAGES)
    async for earlier in past:
        newest.append(earlier.id)
        show(earlier.envelope)
    if not live:
        return
    shown = set(newest)
    matches = _LocalFilter(pod, filter)
    async for message in pod:
        if is_live(message.kind) or (matches(message.envelope) and message.id not in shown):
            show(message.envelope)


class _LocalFilter:
    """Applies the filter to the envelopes that bypass it at the gateway. Owns a context tracker.

    These are the gateway's own envelopes, those that we sent, and those addressed to us.
    """

    def __init__(self, pod: Pod, filter: Filter) -> None:
        self._me = pod.me
        self._filter = filter
        self._contexts = ContextTracker(pod.contexts.values())

    def __call__(self, envelope: Envelope) -> bool:
        lineage = self._contexts.observe(envelope)
        bypasses_filter = (
            envelope.kind.startswith("system/")
            or envelope.sender == self._me
            or self._me in (envelope.to or ())
        )
        return not bypasses_filter or self._filter.matches(envelope, lineage)
