"""Delivers the messages of one pod to an agent's hooks, handlers and request server.

One task reads the log. For each message it awaits the observers, then passes the message to the
request server and queues it for the handlers. Observers therefore run in the log's order and ahead
of everything else; handlers run in tasks of their own, so that a slow handler does not delay the
requests, cancellations and responses behind it in the log, nor the news of a gap.
"""

import inspect
import logging
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

import anyio
from anyio.abc import TaskGroup

from mcpp import kinds
from mcpp.agent.hooks import Handler, Hooks, Subscription
from mcpp.agent.lanes import Lane
from mcpp.agent.request_server import Method, RequestServer
from mcpp.agent.shares import FairLimiter, Shares
from mcpp.agent.workers import WorkerGroup
from mcpp.buffers import MAX_BUFFER_BYTES, MAX_LOG_BYTES, BoundedQueue
from mcpp.client.message import Message
from mcpp.client.pod import Pod
from mcpp.client.resuming import own_proposals
from mcpp.client.tasks import background, contained
from mcpp.errors import ConnectionLostError, McppError
from mcpp.protocol import rpc
from mcpp.session.resumption import Gap, HistoryEnd

OnError: TypeAlias = Callable[[Exception], None]

logger = logging.getLogger("mcpp.agent")

# Policies running at once, and waiting to run, shared fairly by the messages' senders (P-43).
# Beyond these, messages are missed: a flood must not exhaust memory.
MAX_CONCURRENT: Final = 256
_MAX_WAITING: Final = 8192


class _Work:
    """A handler's work on one message. The message's sender may give it up."""

    __slots__ = ("handler", "message", "scope")

    def __init__(self, handler: Handler, message: Message) -> None:
        self.handler = handler
        self.message = message
        self.scope = anyio.CancelScope()


class Dispatcher:
    """Runs an agent's hooks against one pod. Owns the queues of its handlers."""

    def __init__(self, name: str, pod: Pod, hooks: Hooks, on_error: OnError | None = None) -> None:
        self._name = name
        self._pod = pod
        self._hooks = hooks
        self._on_error = on_error
        serial = Lane[_Work]()
        self._handlers = [
            (each, hooks.wrapped(each.handler), _lane_of(each) or serial)
            for each in hooks.subscriptions
        ]
        self._groups = {
            each: WorkerGroup(pod, each, partial(self._handle, handler))
            for each, handler, _ in self._handlers
            if each.claim is not None
        }
        self._work: dict[str, list[_Work]] = {}  # that runs or waits, by the message's id
        self._policies = FairLimiter(MAX_CONCURRENT)
        self._waiting = Shares(_MAX_WAITING)
        self._waiting_bytes = Shares(MAX_BUFFER_BYTES)
        self._missing = False  # whether the last message for a policy was missed
        # Proposals that policies were given: live until the past is read, then those of the past.
        self._decided: set[str] = set()
        self._has_read_past = False
        self._gap: Gap | None = None
        self._gap_event = anyio.Event()

    async def run(self, methods: Mapping[str, Method]) -> None:
        """Dispatch until the connection ends for good.

        Raises ConnectionLostError, and what an `on_join` hook raises.
        """
        for hook in self._hooks.on_join:
            await _call(hook, self._pod)
        async with background() as tasks:
            tasks.start_soon(self._report_gaps)
            for task in self._hooks.tasks:
                tasks.start_soon(self._guard, task, self._pod)
            if self._hooks.on_resume:
                tasks.start_soon(self._resume)
            if any(each.is_policy for each in self._hooks.subscriptions):
                tasks.start_soon(self._decide_past, tasks)
            for group in self._groups.values():
                tasks.start_soon(self._share, group)
            await self._read(RequestServer(methods, tasks, self._hooks), tasks)

    async def _read(self, server: RequestServer, tasks: TaskGroup) -> None:
        # None once the history hooks have run.
        history: BoundedQueue[Message] | None = BoundedQueue(max_bytes=MAX_LOG_BYTES)
        if not self._pod.replayed or not self._hooks.on_history:
            await self._finish_history(())
            history = None
        while True:
            item = await self._pod.next_item()
            if history is not None and not (isinstance(item, Message) and item.replayed):
                await self._finish_history(history)
                history = None
            if isinstance(item, HistoryEnd):
                continue
            for observer in self._hooks.observers:
                await self._guard(observer, item)
            if isinstance(item, Gap):
                self._note_gap(item)
                continue
            server.receive(item)
            if not item.replayed:
                self._queue(item, tasks)
            elif history is not None and history.push(item, item.envelope.size_bytes):
                logger.debug("%s: the history is longer than is kept", self._name)

    async def _finish_history(self, history: Iterable[Message]) -> None:
        for hook in self._hooks.on_history:
            await self._guard(hook, list(history))

    # --- handlers ---

    def _queue(self, message: Message, tasks: TaskGroup) -> None:
        if message.correlation_id in self._work:
            self._give_up(message)
        is_decided = message.id in self._decided
        for subscription, handler, lane in self._handlers:
            if not subscription.wants(message):
                continue
            if subscription.is_policy:
                if is_decided:
                    continue
                if not self._has_read_past:
                    self._decided.add(message.id)
                was_full = self._missing
                self._missing = not self._start_policy(handler, message, tasks)
                is_full = self._missing
            elif subscription in self._groups:
                group = self._groups[subscription]
                was_full, is_full = group.full, not group.put(message)
            else:
                was_full, work = lane.full, _Work(handler, message)
                key = _key(subscription, message)
                is_full = not lane.put(key, work, message.envelope.size_bytes)
                if not is_full:
                    self._work.setdefault(message.id, []).append(work)
                    self._run_ready(lane, tasks)
            if is_full and not was_full:
                logger.error("%s: handlers are too slow, messages are missed", self._name)
                self._note_gap(Gap(lost_log=False))

    def _run_ready(self, lane: Lane[_Work], tasks: TaskGroup) -> None:
        while (taken := lane.take()) is not None:
            tasks.start_soon(self._run_lane, lane, taken)

    async def _run_lane(self, lane: Lane[_Work], taken: tuple[Hashable, _Work] | None) -> None:
        while taken is not None:
            key, work = taken
            try:
                await self._run(work)
            finally:
                lane.finish(key)
            taken = lane.take()

    async def _share(self, group: WorkerGroup) -> None:
        try:
            await group.run()
        except ConnectionLostError:
            pass  # the reading task raises it
        except McppError as error:
            logger.warning("%s: cannot take part in its group: %s", self._name, error)

    async def _handle(self, handler: Handler, message: Message) -> None:
        work = _Work(handler, message)
        self._work.setdefault(message.id, []).append(work)
        await self._run(work)

    async def _run(self, work: _Work) -> None:
        try:
            if not work.scope.cancel_called:
                with work.scope:
                    await self._guard(work.handler, work.message)
        finally:
            several = self._work[work.message.id]
            several.remove(work)
            if not several:
                del self._work[work.message.id]

    def _give_up(self, message: Message) -> None:
        """Cancel the handlers of a message whose sender no longer waits for them (P-52)."""
        if message.kind not in (rpc.CANCELLED_KIND, kinds.WITHDRAW):
            return
        for work in self._work[message.correlation_id or ""]:
            if work.message.sender == message.sender:
                work.scope.cancel()

    # --- policies ---

    async def _decide_past(self, tasks: TaskGroup) -> None:
        """Have policies decide on the proposals that were open when the agent joined (P-51)."""
        try:
            found = await self._pod.open_proposals()
        except McppError as error:
            logger.warning("%s: cannot read which proposals are open: %s", self._name, error)
            return
        finally:
            self._has_read_past = True
        # What has arrived since joining is being decided already.
        past = [message for message in found if message.id not in self._decided]
        self._decided = {message.id for message in past}
        for message in past:
            for subscription, handler, _ in self._handlers:
                if subscription.is_policy and subscription.wants(message):
                    self._start_policy(handler, message, tasks)

    def _start_policy(self, handler: Handler, message: Message, tasks: TaskGroup) -> bool:
        """Start a policy, which may have to wait; return False if too many wait."""
        sender, size_bytes = message.sender, message.envelope.size_bytes
        if not self._waiting.take(sender):
            return False
        if not self._waiting_bytes.take(sender, size_bytes):
            self._waiting.release(sender)
            return False
        work = _Work(handler, message)
        self._work.setdefault(message.id, []).append(work)
        tasks.start_soon(self._run_policy, work)
        return True

    async def _run_policy(self, work: _Work) -> None:
        message = work.message
        try:
            async with self._policies.place(message.sender):
                await self._run(work)
        finally:
            self._waiting.release(message.sender)
            self._waiting_bytes.release(message.sender, message.envelope.size_bytes)

    # --- resuming, gaps ---

    async def _resume(self) -> None:
        """Give the agent its own proposals of the past that it may still have to act on (P-53)."""
        try:
            found = await own_proposals(self._pod)
        except McppError as error:
            logger.warning("%s: cannot read its own proposals: %s", self._name, error)
            return
        async with anyio.create_task_group() as tasks:
            for hook in self._hooks.on_resume if found else ():
                tasks.start_soon(self._guard, hook, found)

    def _note_gap(self, gap: Gap) -> None:
        # Several that come before one is reported are one: on_gap may take its time.
        self._gap = gap if self._gap is None else Gap(self._gap.lost_log or gap.lost_log)
        self._gap_event.set()

    async def _report_gaps(self) -> None:
        while True:
            await self._gap_event.wait()
            self._gap_event = anyio.Event()
            gap, self._gap = self._gap, None
            if self._hooks.on_gap is None:
                await self._guard(self._pod.handle_gap, gap)
            else:
                await self._guard(self._hooks.on_gap, gap, reported=False)

    async def _guard(
        self, function: Callable[[Any], Any], argument: Any, *, reported: bool = True
    ) -> None:
        """Call one of the agent's functions. A failure is logged, and the agent continues."""
        try:
            await contained(_call(function, argument))
        except ConnectionLostError:
            pass  # the reading task raises it
        except Exception as error:
            logger.exception("%s: %s failed", self._name, getattr(function, "__name__", "?"))
            if reported and self._on_error is not None:
                self._on_error(error)


def _lane_of(subscription: Subscription) -> Lane[_Work] | None:
    """Return a lane of its own for a handler that has `concurrency`."""
    return None if subscription.concurrency is None else Lane(subscription.concurrency)


def _key(subscription: Subscription, message: Message) -> Hashable:
    """Return what has to be handled in order: a context's messages, or nothing."""
    if subscription.concurrency is None or subscription.order == "free":
        return object()
    return None if message.context is None else message.context.id


async def _call(function: Callable[[Any], Any], argument: Any) -> None:
    outcome = function(argument)
    if inspect.isawaitable(outcome):
        await outcome
