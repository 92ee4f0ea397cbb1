"""A claim as an `async with` block: one participant at a time holds a name (P-55).

The claim is sent, and then the log is asked who holds the name: what this participant's filter
hides counts too. A holder that has left the pod, because its line was cut, learns it when it is
connected again: its block is cancelled, and ends with `ClaimLostError`.
"""

import logging
import re
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import anyio

from mcpp import filters, kinds
from mcpp.client.history import HistoryMessage, collect
from mcpp.errors import (
    ClaimHeldError,
    ClaimLostError,
    EncodeError,
    HistoryLostError,
    McppError,
    Refused,
)
from mcpp.payloads import Release
from mcpp.protocol.envelope import ID_PATTERN, Envelope
from mcpp.session.claims import ClaimRegister

if TYPE_CHECKING:
    from mcpp.client.pod import Pod

_is_name = re.compile(ID_PATTERN).fullmatch

# How much of the past decides: the newest claims and releases of a name, and presences since. Void
# claims count too, so a few hundred are not enough: a program may try a held name once a minute.
_MAX_PAST: Final = 10_000
# Of so many names a pod knows its last claim that held; the next reading begins there.
_MAX_MARKS: Final = 1_000
_presences: Final = filters.kind(kinds.PRESENCE)

logger = logging.getLogger("mcpp.client")


class ClaimScope:
    """A name that this participant holds while the block runs; `Pod.claim` returns one."""

    def __init__(self, pod: "Pod", name: str, *, wait: float | None = None) -> None:
        if not _is_name(name):
            raise EncodeError("$.kind", f"{name!r} is not 1 to 128 of A-Z a-z 0-9 . _ : ~ -")
        self.name = name
        self.token = 0
        """The claim's position in the log: every later holder has a higher one."""
        self.was_done = False
        """Whether an earlier holder has called `done`."""
        self._pod = pod
        self._wait = wait
        self._is_done = False
        self._is_lost = False
        self._envelope: Envelope | None = None
        self._scope = anyio.CancelScope()
        self._watching = anyio.CancelScope()

    @property
    def holder(self) -> str | None:
        """The participant that holds the name now, as far as it is known."""
        known = self._pod.claims.get(self.name)
        return None if known is None else known.holder

    def done(self) -> None:
        """Release the name as done: a worker group does not take it again."""
        self._is_done = True

    async def __aenter__(self) -> Self:
        lock = self._pod._claim_locks.setdefault(self.name, anyio.Lock())
        # Tasks of one participant wait for each other here: in the log they are one.
        # A task that holds the name already would wait for itself.
        is_ours = lock.statistics().owner == anyio.get_current_task()
        if is_ours or (self._wait == 0 and lock.locked()):
            raise ClaimHeldError(self.name, self._pod.me)
        with anyio.CancelScope() as waiting:
            if self._wait:
                waiting.deadline = anyio.current_time() + self._wait
            await lock.acquire()
        if waiting.cancelled_caught:
            raise ClaimHeldError(self.name, self._pod.me)
        try:
            await self._acquire()
        except BaseException:
            await self._end()
            raise
        self._pod.start_soon(self._watch)
        self._scope.__enter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        suppressed = bool(self._scope.__exit__(kind, error, traceback))
        self._watching.cancel()
        await self._end(is_normal=error is None)
        if self._is_lost and (error is None or suppressed):
            raise ClaimLostError(self.name)
        return suppressed

    async def _end(self, *, is_normal: bool = False) -> None:
        envelope = self._envelope
        try:
            if envelope is not None and not self._is_lost:
                await self._release(envelope, wait=is_normal)
        except McppError as error:
            logger.warning("%s: cannot release %r: %s", self._pod.me, self.name, error)
        finally:
            lock = self._pod._claim_locks[self.name]
            lock.release()
            if not lock.locked() and not lock.statistics().tasks_waiting:
                self._pod._claim_locks.pop(self.name, None)

    async def _release(self, claim: Envelope, *, wait: bool) -> None:
        kind, payload = f"{kinds.RELEASE}:{self.name}", Release(done=self._is_done)
        if wait:
            await self._pod.send(kind, payload, correlation_id=claim.id)
        else:
            release = self._pod._envelope(kind, payload, None, claim.id, self._pod)
            await self._pod._connection.send_shielded(release)

    async def _acquire(self) -> None:
        pod = self._pod
        await pod._hear_claims()
        deadline = None if self._wait is None else anyio.current_time() + self._wait
        while True:
            changed = pod._connection.claims_changed
            if self.holder in (None, pod.me):
                self._envelope = await pod.send(f"{kinds.CLAIM}:{self.name}", {})
                if await self._is_first(self._envelope):
                    return
                self._envelope = None
                changed = pod._connection.claims_changed
            if self.holder not in (None, pod.me):
                with anyio.CancelScope() as waiting:
                    if deadline is not None:
                        waiting.deadline = deadline
                    await changed.wait()
                if waiting.cancelled_caught:
                    raise ClaimHeldError(self.name, self.holder or "another participant")
            pod._connection.raise_if_closed()

    async def _is_first(self, claim: Envelope) -> bool:
        """Return whether the log says that a claim holds its name, and learn from it who does."""
        pod = self._pod
        with pod._session.claims.recording() as recorded:
            past = await self._read_since_mark() or await self._read_past()
            # What was received since is in the pages, or follows them.
            log = {message.id: message.envelope for message in past}
            register = ClaimRegister((log | {each.id: each for each in recorded}).values())
        held = register.held.get(self.name)
        self.was_done = self.was_done or register.is_done(self.name)
        pod._session.claims.correct(self.name, held, is_done=self.was_done)
        own = next((message for message in past if message.id == claim.id), None)
        self.token = 0 if own is None else own.position
        is_first = held is not None and held.id == claim.id
        if is_first and own is not None:
            _set_mark(pod._claim_marks, own, is_done=self.was_done)
        return is_first

    async def _read_since_mark(self) -> list[HistoryMessage]:
        """Return the log from the last claim on that held the name; nothing if it is not known.

        What came before does not matter, however much it is.
        """
        if (known := self._pod._claim_marks.get(f"{kinds.CLAIM}:{self.name}")) is None:
            return []
        mark, is_done = known
        try:
            since = self._pod.history(self._about() | _presences, after=mark)
            found, is_complete = await collect(since, _MAX_PAST)
        except (Refused, HistoryLostError):  # the log no longer has it
            return []
        self.was_done = self.was_done or is_done
        return [mark, *found] if is_complete else []

    async def _read_past(self) -> list[HistoryMessage]:
        """Return the newest claims and releases of the name, and the presences since them."""
        newest, _ = await collect(self._pod.history(self._about(), order="newest"), _MAX_PAST)
        if len(newest) <= 1:  # nothing but the claim itself
            return newest
        presences = self._pod.history(_presences, after=newest[-1], order="newest")
        changes, _ = await collect(presences, _MAX_PAST)
        return sorted([*newest, *changes], key=_position)

    def _about(self) -> filters.Filter:
        return filters.kind(f"{kinds.CLAIM}:{self.name}") | filters.kind(
            f"{kinds.RELEASE}:{self.name}"
        )

    async def _watch(self) -> None:
        """Cancel the block if this participant turns out to have left since it claimed."""
        pod, claim = self._pod, self._envelope
        assert claim is not None
        epoch = pod._session.pod and pod._session.pod.epoch
        with self._watching:
            while not self._is_lost:
                try:
                    await pod._connection.wait_for_rejoin()
                    self._is_lost = (
                        pod._session.pod is None
                        or pod._session.pod.epoch != epoch
                        or not await self._is_first(claim)
                    )
                except McppError as error:
                    logger.warning("%s: cannot confirm its claim: %s", pod.me, error)
                    self._is_lost = True
            self._scope.cancel()


def with_claims(filter: filters.Filter) -> filters.Filter:
    """Return a filter that passes claims and releases, too."""
    claims = filters.kind(f"{kinds.CLAIM}:*") | filters.kind(f"{kinds.RELEASE}:*")
    return filter | claims


def _set_mark(
    marks: dict[str, tuple[HistoryMessage, bool]], claim: HistoryMessage, *, is_done: bool
) -> None:
    marks.pop(claim.kind, None)
    marks[claim.kind] = claim, is_done
    if len(marks) > _MAX_MARKS:
        del marks[next(iter(marks))]


def _position(message: HistoryMessage) -> int:
    return message.position
