"""Memory as a participant: it records what is worth keeping in a pod, and serves its tools.

Only the creator of a context may conclude it or opt it out, so memory must have seen its first
envelope. It asks for the pod's history on joining; the gateway's message counts, in the welcome and
at a context's end, show whether the history holds all of a context. If not, or after a gap, the
creator is unknown, and nothing in the context counts until it has expired. Opt-outs are kept in the
store for the next start.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio.to_thread

from mcpp import Envelope, Gap, Message, Options, Participant, Pod
from mcpp.payloads import ContextInfo
from mcpp.protocol.contexts import read_context_change
from mcpp_agents.memory.access import Principal
from mcpp_agents.memory.bus.erasures import PodErasures
from mcpp_agents.memory.bus.extracted_memory import ExtractedMemory
from mcpp_agents.memory.bus.listener import ContextListener
from mcpp_agents.memory.bus.recorder import Recorder
from mcpp_agents.memory.bus.summaries.rolling import RollingPolicy
from mcpp_agents.memory.bus.summaries.summary_store import SummaryStore
from mcpp_agents.memory.bus.tool_handlers import (
    MAX_MESSAGE_BYTES,
    MemoryToolHandlers,
    register_tools,
)
from mcpp_agents.memory.bus.write_queue import WriteQueue
from mcpp_agents.memory.errors import MemoryStoreError
from mcpp_agents.memory.store import MemoryStore

if TYPE_CHECKING:
    from mcpp_agents.memory.bus.summaries.summarizer import Summarizer

logger = logging.getLogger("mcpp.memory")

HISTORY_MESSAGES: Final = 1_000


class MemoryAgent:
    """Memory as an agent. Run its `participant`, in one pod at a time."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        name: str = "memory",
        granted: frozenset[str] = frozenset(),
        listening: bool = True,
        summarizer: "Summarizer | None" = None,
        rolling: RollingPolicy | None = RollingPolicy(),  # noqa: B008  (frozen)
        options: Options = Options(),  # noqa: B008  (frozen)
    ) -> None:
        """Describe the agent.

        Args:
            store: where memories are kept.
            name: its name in the pod.
            granted: projects that the pod may read and write besides its own.
            listening: False serves the tools but records nothing.
            summarizer: summarizes with a model; without one, summaries are extractive.
            rolling: when contexts that are still open are summarized; None never does.
            options: how the connection behaves.
        """
        self._store = store
        self._granted = granted
        self._summarizer = summarizer
        self._rolling = rolling
        self._listening = listening
        self._joined: _JoinedPod | None = None
        # `connect_options` asks for the agent's own envelopes, too: they count towards the length
        # of the history.
        self.participant = Participant(name, last=HISTORY_MESSAGES, options=options)
        self.participant.on_join(self._join)
        register_tools(self.participant, lambda: (self._pod.tools, self._pod.erasures))
        # An observer, because a request must find what was concluded before it.
        self.participant.observe(self._observe)
        if listening:
            self.participant.on_history(self._catch_up)
            self.participant.task(self._summarize)

    def _join(self, pod: Pod) -> None:
        principal = Principal.for_pod(pod.name, granted=self._granted)
        limit = pod.limits.get("max_message_bytes")
        max_bytes = limit if isinstance(limit, int) else MAX_MESSAGE_BYTES
        store = self._store.acting_as(principal)
        tools = MemoryToolHandlers(self._store, principal, max_bytes=max_bytes)
        erasures = PodErasures(pod, store)
        recorder = Recorder(self._store, principal, last_erasure=lambda: erasures.last)
        pod_recorder = _PodRecorder(
            ContextListener(pod.name, participant=pod.me, rolling=self._rolling),
            pod,
            store=store,
            summaries=recorder.summaries,
            queue=WriteQueue(recorder, self._summarizer),
        )
        self._joined = _JoinedPod(tools, erasures, pod_recorder)

    @property
    def _pod(self) -> "_JoinedPod":
        assert self._joined is not None  # the other hooks run after `on_join`
        return self._joined

    async def _catch_up(self, history: list[Message]) -> None:
        await self._pod.recorder.catch_up(history)

    async def _observe(self, item: Message | Gap) -> None:
        pod = self._pod
        found = await pod.erasures.find(item)
        if found:
            await pod.recorder.forget_conversations()
            await pod.erasures.apply(found)
        if self._listening:
            await pod.recorder.observe(item)

    async def _summarize(self, pod: Pod) -> None:
        await self._pod.recorder.run()


def begun_before(history: Iterable[Envelope], live: Mapping[str, ContextInfo]) -> set[str]:
    """Return the contexts whose beginning a history may lack: it holds less than was counted.

    Args:
        history: the replayed envelopes.
        live: the contexts that are live at the history's end, with their counts where known.
    """
    seen: Counter[str] = Counter()
    complete: dict[str, bool] = {}  # of each context's first lifetime in the history
    for envelope in history:
        if change := read_context_change(envelope):
            for ended in change.contexts:
                complete.setdefault(ended.id, seen[ended.id] == ended.messages)
        elif envelope.context is not None:
            seen[envelope.context.id] += 1
    for id in seen.keys() | live.keys():
        # A context without a count began after we joined, or was left out of the welcome.
        count = live[id].messages if id in live else None
        complete.setdefault(id, seen[id] == count or (not seen[id] and count is None))
    return {id for id, is_complete in complete.items() if not is_complete}


class _JoinedPod(NamedTuple):
    """What serves one pod, from joining to leaving."""

    tools: MemoryToolHandlers
    erasures: PodErasures
    recorder: "_PodRecorder"


class _PodRecorder:
    """Records memories of one pod. Owns the listener and the opt-outs as the store has them."""

    def __init__(
        self,
        listener: ContextListener,
        pod: Pod,
        *,
        store: MemoryStore,
        summaries: SummaryStore,
        queue: WriteQueue,
    ) -> None:
        self._pod = pod
        self._store = store
        self._summaries = summaries
        self._queue = queue
        self._listener = listener
        self._opted_out = self._listener.opted_out

    async def run(self) -> None:
        """Write what was recorded to the store, until cancelled."""
        await self._queue.run()

    async def catch_up(self, history: list[Message]) -> None:
        """Record the replayed history."""
        envelopes = [message.envelope for message in history]
        incomplete = begun_before(envelopes, self._pod.contexts)
        for id in incomplete:
            self._add_context(id)
        # The history itself shows which of the complete ones have opted out.
        try:
            self._opted_out = await anyio.to_thread.run_sync(self._store.opted_out)
            self._listener.opt_out(self._opted_out & incomplete)
        except MemoryStoreError as error:
            logger.warning("cannot read the opt-outs; not recording earlier contexts: %s", error)
            self._listener.opt_out(incomplete)
        for envelope in envelopes:
            await self._record(envelope)
        await self._save_opted_out()
        try:
            known = await anyio.to_thread.run_sync(self._summaries.contexts)
            self._listener.add_summarized(known)
        except MemoryStoreError as error:
            logger.warning("cannot read the summaries of open contexts: %s", error)
        await self._queue.put(self._listener.take_summaries())

    async def forget_conversations(self) -> None:
        """Store what waits to be stored, and forget what was said so far: some of it is erased."""
        self._listener.forget_conversations()
        await self._queue.flush()

    async def observe(self, item: Message | Gap) -> None:
        """Record a live message, or note that some were missed."""
        if isinstance(item, Gap):
            await self._handle_gap(item)
        elif not item.replayed:
            await self._record(item.envelope)
        await self._queue.put(self._listener.take_summaries())

    async def _handle_gap(self, gap: Gap) -> None:
        """Forget the creators of all contexts that may have begun in the gap."""
        if gap.lost_log:
            for id in self._listener.contexts:
                await self._extract(id, partial(self._listener.end_context, id))
            self._listener.clear()
            await self._save_opted_out()
        self._listener.forget_creators()
        for id, info in self._pod.contexts.items():
            if info.messages:
                self._add_context(id)

    def _add_context(self, id: str) -> None:
        self._listener.add_context(self._pod.contexts.get(id) or ContextInfo(id=id))

    async def _record(self, envelope: Envelope) -> None:
        await self._extract(envelope.id, partial(self._listener.receive, envelope))
        await self._save_opted_out()

    async def _extract(self, id: str, extract: Callable[[], list[ExtractedMemory]]) -> None:
        try:
            memories = extract()
        except Exception:
            # One odd envelope must not stop the memory of the pod.
            logger.exception("skipped %s after an error", id)
            return
        await self._queue.put(memories)

    async def _save_opted_out(self) -> None:
        wanted = self._listener.opted_out
        if wanted == self._opted_out:
            return
        try:
            await anyio.to_thread.run_sync(self._store.opt_out, wanted)
        except MemoryStoreError as error:  # the next envelope tries again
            logger.warning("cannot save the opt-outs yet: %s", error)
        else:
            self._opted_out = wanted
