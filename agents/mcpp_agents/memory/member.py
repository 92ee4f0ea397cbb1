"""Memory as a participant: it hears a pod, keeps what is worth keeping, and answers.

Only a context's creator concludes it, so memory must know who spoke first. It asks for the pod's
history when it joins: if that is so short that the gateway cannot have forgotten anything yet,
whoever is heard first in a context was the first. If not, or after a gap, nobody can say, and no
conclusion of those contexts counts until they have expired.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from mcpp import Envelope, McppError, Message, Pod
from mcpp.tasks import background

from .access import Principal
from .desk import MAX_MESSAGE_BYTES, Desk
from .listener import Listener
from .recorder import Recorder
from .scribe import Scribe
from .store import MemoryStore

if TYPE_CHECKING:
    from .narrator import Narrator

_log = logging.getLogger(__name__)

HISTORY_MESSAGES: Final = 1_000

Connect = Callable[..., AbstractAsyncContextManager[Pod]]


async def join(
    connect: Connect,
    store: MemoryStore,
    *,
    granted: frozenset[str] = frozenset(),
    listening: bool = True,
    narrator: "Narrator | None" = None,
) -> None:
    """Be a pod's memory until the connection ends for good.

    Args:
        connect: `mcpp.connect` with everything but `last`, `own` and `on_gap`.
        granted: projects that the pod may read and write beside its own.
        listening: False is the pod's opting out: the tools are served, nothing is overheard.
        narrator: who summarises; without one, summaries are extractive.
    """
    gaps: list[object] = []
    # Our own envelopes are part of the history whose length counts.
    connecting = connect(last=HISTORY_MESSAGES, on_gap=gaps.append, own=True)
    async with connecting as pod, background() as tasks:
        member = _Member(pod, store, Principal.for_pod(pod.name, granted=granted), narrator)
        tasks.start_soon(member.narrate)
        history: list[Envelope] | None = [] if listening and pod.history else None
        async for message in pod:
            if history is not None and message.replayed:
                history.append(message.envelope)
                if len(history) < pod.history:
                    continue
            if history is not None:
                await member.catch_up(history)
                history = None
            if message.replayed:
                continue
            if gaps:
                gaps.clear()
                member.disown()
            if listening:
                await member.hear(message.envelope)
            await member.answer(message)


class _Member:
    """The parts of memory at work in one pod."""

    def __init__(
        self, pod: Pod, store: MemoryStore, principal: Principal, narrator: "Narrator | None"
    ) -> None:
        self._pod = pod
        limit = pod.limits.get("max_message_bytes")
        max_bytes = limit if isinstance(limit, int) else MAX_MESSAGE_BYTES
        self._desk = Desk(store, principal, participant=pod.me, max_bytes=max_bytes)
        self._scribe = Scribe(Recorder(store, principal), narrator)
        self._listener = Listener(pod.name, participant=pod.me)

    async def narrate(self) -> None:
        await self._scribe.narrate()

    async def catch_up(self, history: list[Envelope]) -> None:
        if not self._is_whole(len(history)):
            self._adopt()
            for envelope in history:
                if envelope.context is not None:
                    self._listener.adopt({"id": envelope.context.id})
        for envelope in history:
            await self.hear(envelope)

    def disown(self) -> None:
        """Let nobody be the creator of the contexts that may have begun unheard."""
        self._listener.disown()
        self._adopt()

    def _adopt(self) -> None:
        for info in self._pod.contexts.values():
            self._listener.adopt({"id": info.id, "type": info.type, "parent": info.parent})

    def _is_whole(self, count: int) -> bool:
        """Whether the log, were each envelope as large as one can be, would still hold them all."""
        limits = self._pod.limits
        bounds = (limits.get(name) for name in ("history_messages", "history_bytes"))
        messages, size = (bound if isinstance(bound, int) else 0 for bound in bounds)
        largest = limits.get("max_message_bytes")
        fitting = size // largest if isinstance(largest, int) and largest > 0 else 0
        return count < min(HISTORY_MESSAGES, messages, fitting)

    async def hear(self, envelope: Envelope) -> None:
        try:
            findings = self._listener.receive(envelope)
        except Exception:
            # One odd envelope must not end the memory of the whole pod.
            _log.exception("%s of %s is passed over", envelope.id, envelope.sender)
            return
        await self._scribe.keep(findings)

    async def answer(self, message: Message) -> None:
        request = message.envelope
        if message.replayed or not self._desk.serves(request):
            return
        answer = await anyio.to_thread.run_sync(self._desk.answer, request)
        if answer is None:
            return
        try:
            await self._pod.send(
                answer.kind,
                answer.payload,
                to=answer.to,
                correlation_id=answer.correlation_id,
                context=answer.context,
            )
        except McppError as error:
            _log.warning("the answer to %s of %s got lost: %s", request.kind, request.sender, error)
