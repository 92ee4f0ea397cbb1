"""Tasks that a group of participants shares: each is claimed, and run by one of them at a time.

A worker takes a task only when it has a place for it, so that tasks go to workers that are free. A
task whose holder leaves before it is done is taken by another; so it may run more than once, but
never twice at a time (P-56).
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from mcpp import filters, kinds
from mcpp.agent.hooks import Subscription
from mcpp.buffers import MAX_BUFFER_BYTES
from mcpp.client.history import collect
from mcpp.client.message import Message
from mcpp.client.pod import Pod
from mcpp.errors import ClaimHeldError, ClaimLostError, McppError
from mcpp.session.claims import ClaimRegister

logger = logging.getLogger("mcpp.agent")

_MAX_TASKS: Final = 10_000
# How many tasks, claims and releases of the past a worker reads when it joins.
_MAX_PAST: Final = 10_000


class WorkerGroup:
    """One worker of a group. Owns the tasks that are not done as far as it knows."""

    def __init__(
        self, pod: Pod, subscription: Subscription, work: Callable[[Message], Awaitable[None]]
    ) -> None:
        assert subscription.claim is not None
        self._pod = pod
        self._subscription = subscription
        self._key = subscription.claim
        self._work = work
        self._limit = subscription.concurrency or 1
        self.full = False  # whether the last task was rejected
        self._tasks: dict[str, Message] = {}
        self._bytes = 0  # of these (P-40)
        self._running: set[str] = set()

    def put(self, message: Message) -> bool:
        """Add a task and return True, or return False if too many wait."""
        key = self._name(message)
        if key is None:
            return True
        self.full = not self._add(key, message)
        self._pod._connection.wake_claims()
        return not self.full

    def _add(self, key: str, message: Message) -> bool:
        """Add a task, unless it is known or there are too many; return False for too many."""
        if key in self._tasks:
            return True
        size_bytes = self._bytes + message.envelope.size_bytes
        if self._tasks and (len(self._tasks) >= _MAX_TASKS or size_bytes > MAX_BUFFER_BYTES):
            return False
        self._tasks[key] = message
        self._bytes = size_bytes
        return True

    def _drop(self, key: str) -> None:
        message = self._tasks.pop(key, None)
        self._bytes -= 0 if message is None else message.envelope.size_bytes

    def _name(self, message: Message) -> str | None:
        """Return the name to claim for a message; None, and a line in the log, if there is none."""
        try:
            name = self._key(message)
        except Exception:
            logger.exception("%s: claim= failed for %s", self._pod.me, message.kind)
            return None
        if isinstance(name, str):
            return name
        logger.warning("%s: claim= returned %r, which is no name", self._pod.me, name)
        return None

    async def run(self) -> None:
        """Claim and run tasks, until cancelled."""
        await self._pod._hear_claims()
        await self._find_past()
        async with anyio.create_task_group() as tasks:
            while True:
                changed = self._pod._connection.claims_changed
                for key in self._available()[: self._limit - len(self._running)]:
                    self._running.add(key)
                    tasks.start_soon(self._attempt, key)
                await changed.wait()

    def _available(self) -> list[str]:
        register = self._pod._session.claims
        for key in [key for key in self._tasks if register.is_done(key)]:
            if key not in self._running:
                self._drop(key)
        held = {name for name, claim in register.held.items() if claim.holder != self._pod.me}
        return [key for key in self._tasks if key not in held and key not in self._running]

    async def _attempt(self, key: str) -> None:
        try:
            async with self._pod.claim(key, wait=0) as claim:
                if not claim.was_done:
                    await self._work(self._tasks[key])
                claim.done()
            self._drop(key)
        except (ClaimHeldError, ClaimLostError) as error:
            logger.debug("%s: %s", self._pod.me, error)
        except McppError as error:
            # Not tried again at once: it would fail again.
            self._drop(key)
            logger.warning("%s: cannot claim task %r: %s", self._pod.me, key, error)
        finally:
            self._running.discard(key)
            self._pod._connection.wake_claims()

    async def _find_past(self) -> None:
        """Find tasks in the log that the group has not done: all since the first that it claimed.

        What is older is not a task of the group.
        """
        claims = filters.kind(f"{kinds.CLAIM}:*") | filters.kind(f"{kinds.RELEASE}:*")
        wanted = filters.kind(self._subscription.pattern) | claims
        try:
            reader = self._pod.history(wanted, order="newest")
            newest, is_complete = await collect(reader, _MAX_PAST)
        except McppError as error:
            logger.warning("%s: cannot read earlier tasks: %s", self._pod.me, error)
            return
        past = newest[::-1]
        register = ClaimRegister(message.envelope for message in past)
        claimed = {message.kind.partition(":")[2] for message in past if _is_claim(message)}
        is_ours = False
        for message in past:
            if _is_claim(message) or message.erased or not self._subscription.wants(message):
                continue
            key = self._name(message)
            if key is None:
                continue
            is_ours = is_ours or key in claimed
            if is_ours and not register.is_done(key):
                self._add(key, message)
        if not is_complete and not is_ours:
            # They may be the group's, or as old as the log: to run them could do harm.
            text = "%s: none of the newest %d tasks and claims is known to be its group's"
            logger.warning(text, self._pod.me, _MAX_PAST)


def _is_claim(message: Message) -> bool:
    return message.kind.startswith((f"{kinds.CLAIM}:", f"{kinds.RELEASE}:"))
