"""Memory as a participant: it hears a pod, keeps what is worth keeping, and answers.

Only a context's creator concludes it, and may opt it out, so memory must have heard it begin. It
asks for the pod's history when it joins; what the gateway counts in a context, in the welcome and
at its end, says whether the history holds all of it. If not, or after a gap, nobody can say who
began it, and nothing of it counts until it has expired. Who has opted out stands in the store, for
the next time.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from mcpp import Envelope, Message, Pod
from mcpp.agent.request_server import RequestServer
from mcpp.client.tasks import background
from mcpp.payloads import ContextInfo
from mcpp.session.session import Gap
from mcpp_agents.memory.access import Principal
from mcpp_agents.memory.bus.findings import Finding
from mcpp_agents.memory.bus.listener import Listener, ending
from mcpp_agents.memory.bus.recorder import Recorder
from mcpp_agents.memory.bus.tool_handlers import MAX_MESSAGE_BYTES, MemoryToolHandlers
from mcpp_agents.memory.bus.write_queue import WriteQueue
from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.store import MemoryStore

if TYPE_CHECKING:
    from mcpp_agents.memory.bus.summarizer import Summarizer

_log = logging.getLogger(__name__)

HISTORY_MESSAGES: Final = 1_000

Connect = Callable[..., AbstractAsyncContextManager[Pod]]


async def join(
    connect: Connect,
    store: MemoryStore,
    *,
    granted: frozenset[str] = frozenset(),
    listening: bool = True,
    narrator: "Summarizer | None" = None,
) -> None:
    """Be a pod's memory until the connection ends for good.

    Args:
        connect: `mcpp.connect` with everything but `last` and `own`.
        granted: projects that the pod may read and write beside its own.
        listening: False is the pod's opting out: the tools are served, nothing is overheard.
        narrator: who summarises; without one, summaries are extractive.
    """
    # Our own envelopes are part of the history whose length counts.
    async with connect(last=HISTORY_MESSAGES, own=True) as pod, background() as tasks:
        principal = Principal.for_pod(pod.name, granted=granted)
        limit = pod.limits.get("max_message_bytes")
        max_bytes = limit if isinstance(limit, int) else MAX_MESSAGE_BYTES
        server = RequestServer(
            MemoryToolHandlers(store, principal, max_bytes=max_bytes).methods, tasks
        )
        member = _Member(pod, store, principal, narrator)
        tasks.start_soon(member.narrate)
        history: list[Envelope] | None = [] if listening else None
        if listening and not pod.history:
            await member.catch_up([])
            history = None
        while True:
            heard = await pod.next()
            if history is not None:
                is_whole = True
                if isinstance(heard, Message) and heard.replayed:
                    history.append(heard.envelope)
                    is_whole = len(history) == pod.history
                if is_whole:
                    await member.catch_up(history)
                    history = None
            match heard:
                case Gap() if listening:
                    await member.miss(heard)
                case Message():
                    if listening and not heard.replayed:
                        await member.hear(heard.envelope)
                    # After that, so that whoever asks for what was just concluded finds it.
                    server.receive(heard)


def begun_before(history: Iterable[Envelope], live: Mapping[str, ContextInfo]) -> set[str]:
    """The contexts of which a history may lack the beginning: it holds less than was counted.

    Args:
        live: those that live at the history's end, with their counts, where these are known.
    """
    heard: Counter[str] = Counter()
    whole: dict[str, bool] = {}  # of each context's earliest life in the history
    for envelope in history:
        if ended := ending(envelope):
            whole.setdefault(ended.context, heard[ended.context] == ended.messages)
        elif envelope.context is not None:
            heard[envelope.context.id] += 1
    for id in heard.keys() | live.keys():
        # What has no count began after we joined, or was left out of the welcome.
        count = live[id].messages if id in live else None
        whole.setdefault(id, heard[id] == count or (not heard[id] and count is None))
    return {id for id, all_heard in whole.items() if not all_heard}


class _Member:
    """Memory as it listens to one pod."""

    def __init__(
        self, pod: Pod, store: MemoryStore, principal: Principal, narrator: "Summarizer | None"
    ) -> None:
        self._pod = pod
        self._store = store.acting_as(principal)
        self._scribe = WriteQueue(Recorder(store, principal), narrator)
        self._listener = Listener(pod.name, participant=pod.me)
        self._opted_out = self._listener.opted_out  # as the store has it

    async def narrate(self) -> None:
        await self._scribe.narrate()

    async def catch_up(self, history: list[Envelope]) -> None:
        unheard = begun_before(history, self._pod.contexts)
        for id in unheard:
            self._adopt(id)
        # Of the others the history tells whether they have opted out.
        try:
            self._opted_out = await anyio.to_thread.run_sync(self._store.opted_out)
            self._listener.opt_out(self._opted_out & unheard)
        except MemoryStoreError as fault:
            _log.warning("who has opted out cannot be read, so all may have: %s", fault)
            self._listener.opt_out(unheard)
        for envelope in history:
            await self.hear(envelope)
        await self._keep_opted_out()

    async def miss(self, gap: Gap) -> None:
        """Let nobody be the creator of the contexts that may have begun unheard."""
        if gap.lost_log:
            for id in self._listener.contexts:
                await self._keep(id, partial(self._listener.left_of, id))
            self._listener.clear()
            await self._keep_opted_out()
        self._listener.disown()
        for id, info in self._pod.contexts.items():
            if info.messages:
                self._adopt(id)

    def _adopt(self, id: str) -> None:
        info = self._pod.contexts.get(id) or ContextInfo(id=id)
        self._listener.adopt(id, info.type, info.parent)

    async def hear(self, envelope: Envelope) -> None:
        await self._keep(envelope.id, partial(self._listener.receive, envelope))
        await self._keep_opted_out()

    async def _keep(self, id: str, find: Callable[[], list[Finding]]) -> None:
        try:
            findings = find()
        except Exception:
            # One odd envelope must not end the memory of the whole pod.
            _log.exception("%s is passed over", id)
            return
        await self._scribe.keep(findings)

    async def _keep_opted_out(self) -> None:
        wanted = self._listener.opted_out
        if wanted == self._opted_out:
            return
        try:
            await anyio.to_thread.run_sync(self._store.opt_out, wanted)
        except MemoryStoreError as fault:  # the next envelope tries again
            _log.warning("who has opted out is not written down yet: %s", fault)
        else:
            self._opted_out = wanted
