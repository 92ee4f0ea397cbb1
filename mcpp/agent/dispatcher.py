"""Delivers the messages of one pod to an agent's hooks, handlers and request server.

One task reads the log. For each message it awaits the observers, then passes the message to the
request server and queues it for the handlers. Observers therefore run in the log's order and ahead
of everything else; handlers run in tasks of their own, so that a slow handler does not delay the
requests, cancellations and responses behind it in the log.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from anyio.abc import TaskGroup

from mcpp.agent.backlog import Backlog
from mcpp.agent.request_server import Method, RequestServer
from mcpp.agent.shares import FairLimiter, Shares
from mcpp.buffers import MAX_BUFFER_BYTES, MAX_LOG_BYTES, BoundedQueue
from mcpp.client.message import Message
from mcpp.client.pod import OnGap, Pod
from mcpp.client.tasks import background, contained
from mcpp.errors import ConnectionLostError
from mcpp.session.resumption import Gap, HistoryEnd

Handler: TypeAlias = Callable[[Message], Awaitable[None]]
Task: TypeAlias = Callable[[Pod], Awaitable[None]]
OnJoin: TypeAlias = Callable[[Pod], Awaitable[None] | None]
OnHistory: TypeAlias = Callable[[list[Message]], Awaitable[None] | None]
Observer: TypeAlias = Callable[[Message | Gap], Awaitable[None] | None]
OnError: TypeAlias = Callable[[Exception], None]
Work: TypeAlias = tuple[Callable[[Any], Awaitable[None] | None], Message | Gap]

logger = logging.getLogger("mcpp.agent")

# Concurrent handlers running at once, and waiting to run, shared fairly by the messages' senders
# (P-43). Beyond these, messages are missed: a flood must not exhaust memory.
MAX_CONCURRENT: Final = 256
_MAX_WAITING: Final = 8192


@dataclass(frozen=True, slots=True)
class Subscription:
    """A handler and the messages that it handles."""

    matches: Callable[[str], bool]
    own: bool
    handler: Handler
    concurrent: bool = False

    def wants(self, message: Message) -> bool:
        """Return whether this handler matches the message."""
        return self.matches(message.kind) and (self.own or message.sender != message.pod.me)


@dataclass(slots=True)
class Hooks:
    """The functions that an agent has registered, in the order of registration."""

    on_join: list[OnJoin] = field(default_factory=list)
    on_history: list[OnHistory] = field(default_factory=list)
    observers: list[Observer] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    on_gap: OnGap | None = None


class Dispatcher:
    """Runs an agent's hooks against one pod. Owns the queues of its handlers."""

    def __init__(self, name: str, pod: Pod, hooks: Hooks, on_error: OnError | None = None) -> None:
        self._name = name
        self._pod = pod
        self._hooks = hooks
        self._on_error = on_error
        self._serial = Backlog[Work]()
        self._concurrent = FairLimiter(MAX_CONCURRENT)
        self._waiting = Shares(_MAX_WAITING)
        self._waiting_bytes = Shares(MAX_BUFFER_BYTES)
        self._missing = False  # whether the last message for a concurrent handler was missed

    async def run(self, methods: Mapping[str, Method]) -> None:
        """Dispatch until the connection ends for good.

        Raises ConnectionLostError, and what an `on_join` hook raises.
        """
        for hook in self._hooks.on_join:
            await _call(hook, self._pod)
        async with background() as tasks:
            tasks.start_soon(self._run_serial)
            for task in self._hooks.tasks:
                tasks.start_soon(self._guard, task, self._pod)
            await self._read(RequestServer(methods, tasks), tasks)

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
                self._queue_gap(item)
                continue
            server.receive(item)
            if not item.replayed:
                self._queue(item, tasks)
            elif history is not None and history.push(item, item.envelope.size_bytes):
                logger.debug("%s: the history is longer than is kept", self._name)

    async def _finish_history(self, history: Iterable[Message]) -> None:
        for hook in self._hooks.on_history:
            await self._guard(hook, list(history))

    def _queue(self, message: Message, tasks: TaskGroup) -> None:
        for subscription in self._hooks.subscriptions:
            if not subscription.wants(message):
                continue
            if subscription.concurrent:
                was_full = self._missing
                self._missing = not self._start(subscription.handler, message, tasks)
                is_full = self._missing
            else:
                was_full, work = self._serial.full, (subscription.handler, message)
                is_full = not self._serial.put(work, message.envelope.size_bytes)
            if is_full and not was_full:
                logger.error("%s: handlers are too slow, messages are missed", self._name)
                self._queue_gap(Gap(lost_log=False))

    def _queue_gap(self, gap: Gap) -> None:
        on_gap = self._pod.handle_gap if self._hooks.on_gap is None else self._handle_gap
        self._serial.put_anyway((on_gap, gap))

    async def _handle_gap(self, gap: Gap) -> None:
        assert self._hooks.on_gap is not None
        await self._guard(self._hooks.on_gap, gap, reported=False)

    async def _run_serial(self) -> None:
        while True:
            handler, argument = await self._serial.take()
            await self._guard(handler, argument)

    def _start(self, handler: Handler, message: Message, tasks: TaskGroup) -> bool:
        """Start a concurrent handler, which may have to wait; return False if too many wait."""
        sender, size_bytes = message.sender, message.envelope.size_bytes
        if not self._waiting.take(sender):
            return False
        if not self._waiting_bytes.take(sender, size_bytes):
            self._waiting.release(sender)
            return False
        tasks.start_soon(self._run_concurrent, handler, message)
        return True

    async def _run_concurrent(self, handler: Handler, message: Message) -> None:
        sender = message.sender
        try:
            async with self._concurrent.place(sender):
                await self._guard(handler, message)
        finally:
            self._waiting.release(sender)
            self._waiting_bytes.release(sender, message.envelope.size_bytes)

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


async def _call(function: Callable[[Any], Any], argument: Any) -> None:
    outcome = function(argument)
    if inspect.isawaitable(outcome):
        await outcome
