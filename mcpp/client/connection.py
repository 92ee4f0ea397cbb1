"""A session kept connected: opens lines, reads them, opens new ones, and settles who waits.

One task (`keep`) owns the line. All others talk to the session and wait for what that task brings.
"""

import copy
import logging
import random
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

import anyio
from anyio.abc import TaskGroup, TaskStatus

from mcpp import kinds
from mcpp.client.exchange import Exchange, Waiter
from mcpp.errors import (
    BusyError,
    ClosedError,
    ConnectionLostError,
    McppError,
    Refused,
    UnreachableError,
)
from mcpp.protocol.envelope import Envelope
from mcpp.session.effects import (
    Answered,
    Echoed,
    Effect,
    EnvelopeRefused,
    Joined,
    Noted,
    Unreadable,
    Unsendable,
)
from mcpp.session.session import ClientSession, Delivery, Gap, is_final
from mcpp.transports.transport import ABNORMAL, Connector, Transport, TransportClosed

log = logging.getLogger("mcpp")

_FIRST_BACKOFF_SECONDS: Final = 0.1
_LAST_BACKOFF_SECONDS: Final = 10.0
# A busy gateway that asks for more patience is asked sooner.
_LAST_RETRY_SECONDS: Final = 120.0
# What was sent without waiting gets this long to be echoed when the connection is left, and as much
# longer as the gateway's limits make it take.
_LEAVE_SECONDS: Final = 2.0
# A replay waits for whoever reads it. One that pauses for longer may itself be waiting for what
# follows, and a line that nobody reads for much longer would be taken for a broken one.
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 5.0
# For what is said by somebody who is being cancelled. A line on which that takes longer is broken.
_TELL_SECONDS: Final = 1.0


def backoff(attempt: int) -> float:
    """Return how long to wait before attempt number `attempt`: ever longer, never in step."""
    longest = min(_LAST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2.0 ** min(attempt, 16))
    return random.uniform(longest / 2, longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a connection behaves. The defaults suit an agent."""

    buffer_messages: int = 1024  # kept for the reader; beyond that the line is dropped and resumed
    unechoed_messages: int = 1024  # on their way; beyond that `send` waits, whatever `wait` says
    rate_limit_seconds: float = 30.0  # waited out for one envelope; 0 raises at once
    open_seconds: float = 10.0  # for a line to be opened and welcomed
    silence_seconds: float = 20.0  # of a line, then it is asked for a sign of life
    keep_trying: bool = False  # also while the gateway cannot be reached at first
    backoff: Callable[[int], float] = backoff
    ssl_context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Refuse what would let nothing in or out, for ever and without a word."""
        if min(self.buffer_messages, self.unechoed_messages) < 1:
            raise ValueError("buffer_messages and unechoed_messages must be at least 1")


class Connection:
    """A session, the line it uses now, and those who wait. Owns the line."""

    def __init__(
        self,
        session: ClientSession,
        connector: Connector,
        options: Options,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.failure: ConnectionLostError | None = None
        self._connector = connector
        self._options = options
        self._clock = clock
        self._transport: Transport | None = None
        self._line: anyio.CancelScope | None = None
        self._replaced: Transport | None = None
        self._tasks: TaskGroup | None = None
        self._task_status: TaskStatus[None] | None = None
        self._timer_at: float | None = None
        self._waiters: dict[str, Waiter] = {}
        self._exchanges: dict[str, Exchange] = {}
        self._arrived = anyio.Event()
        self._resumed = anyio.Event()
        self._settled: anyio.Event | None = None

    # --- what others do ---

    async def send(
        self, envelope: Envelope, *, wait: bool = True, rate_limit_seconds: float | None = None
    ) -> Envelope:
        """Send an envelope; return its echo, or itself at once without `wait`.

        Raises Refused, or ConnectionLostError once there is no way back.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        outgoing = self.session.outgoing
        waiter = Waiter()
        try:
            while len(outgoing) >= self._options.unechoed_messages and self.failure is None:
                await self._settlement()
            self.check()
            self._take_on(envelope, rate_limit_seconds)
            if not wait:
                await self._transmit()
                return envelope
            self._waiters[envelope.id] = waiter
            await self._transmit()
            return await waiter.wait()
        except BaseException:
            # Whoever gave up waiting gave up sending, where that can still be undone.
            if wait and outgoing.discard(envelope.id) and not waiter.echoed:
                self.forget(envelope.id)  # nobody answers what nobody has seen
            raise
        finally:
            self._waiters.pop(envelope.id, None)

    async def tell(self, envelope: Envelope) -> None:
        """Send from where nothing may wait: not for room, hardly for the line, cancelled or not."""
        if self.failure is None:
            self._take_on(envelope)
            with anyio.move_on_after(_TELL_SECONDS, shield=True):
                await self._transmit()

    def take(self) -> Delivery | Gap | None:
        """Return what comes next, or None where that has to be waited for."""
        item = self.session.take()
        if item is not None:
            self._resumed.set()
            if self.session.should_rejoin and self._line is not None:
                self._line.cancel()
        return item

    async def arrival(self) -> None:
        """Wait until more has come. Raises ConnectionLostError where nothing will."""
        # Whoever is cancelled together with the connection is cancelled, not told of its end.
        await anyio.lowlevel.checkpoint_if_cancelled()
        self.check()
        if self._arrived.is_set():
            self._arrived = anyio.Event()  # one for all who wait
        await self._arrived.wait()

    def expect(self, asking: Envelope, participant: str, exchange: Exchange) -> None:
        """Expect what this participant says to a request, or to whoever fulfils a proposal."""
        self.check()
        self._exchanges[asking.id] = exchange
        self.session.expect(asking, participant)

    def expects(self, id: str) -> bool:
        """Tell whether an answer to the request or proposal with this id may still come."""
        return id in self._exchanges

    def forget(self, id: str) -> None:
        """Expect nothing more on the request or proposal with this id."""
        self.session.forget(id)
        self._exchanges.pop(id, None)

    def check(self) -> None:
        """Raise the error that ended the connection, if one has."""
        if self.failure is not None:
            # A copy, for each who raises it adds a traceback.
            raise copy.copy(self.failure)

    async def leave(self) -> None:
        """Give what is still on its way the time to arrive."""
        outgoing = self.session.outgoing
        needed = outgoing.seconds_needed(self._clock())
        with anyio.move_on_after(2 * needed + _LEAVE_SECONDS):  # twice, for lines are slow too
            while len(outgoing) and self.failure is None:
                await self._settlement()

    def end(self, failure: ConnectionLostError) -> None:
        """End for good: whoever waits gets the error, and so does whoever comes later."""
        if self.failure is None:
            self.failure = failure
            unsent = [id for id in self.session.outgoing.unsettled() if id not in self._waiters]
            if unsent:  # and whoever sent them did not wait to be told
                log.warning("%d envelopes of %s may be lost", len(unsent), self.session.name)
        for waiter in self._waiters.values():
            waiter.settle(copy.copy(self.failure))
        for exchange in self._exchanges.values():
            exchange.settle(copy.copy(self.failure))
        self._arrived.set()
        self._tell_settled()

    # --- keeping the line ---

    async def keep(self, tasks: TaskGroup, *, task_status: TaskStatus[None]) -> None:
        """Keep a line open until the connection ends for good; `started` when first joined."""
        self._tasks = tasks
        self._task_status = task_status
        try:
            await self._keep()
        except ConnectionLostError as error:
            self.end(error)
            if self._task_status is not None:
                raise
        finally:
            await self._close_replaced()

    async def _keep(self) -> None:
        attempt, waited = 0, 0.0
        while True:
            line = await self._open()
            # Not while the gateway is busy: it lets a newer line take an older one's place without
            # a word, but one that leaves and joins is told to all, and fills their buffers.
            if not isinstance(line, BusyError):
                await self._close_replaced()
            if isinstance(line, UnreachableError):
                waited = self._wait_after(line, attempt)
            else:
                opened, position = self._clock(), self.session.position
                closed = await self._use(line)
                if is_final(closed.code):
                    raise ClosedError(closed.code, closed.reason)
                # A line that breaks sooner than it was waited for is no reason to hurry, unless it
                # brought something.
                held = self._clock() - opened >= waited or self.session.position != position
                if self.session.joined and held:
                    attempt = 0
                if closed is _REJOIN:
                    continue
                log.info("line lost (%d %s), reconnecting", closed.code, closed.reason)
                waited = self._options.backoff(attempt)
            await anyio.sleep(waited)
            attempt += 1

    def _wait_after(self, error: UnreachableError, attempt: int) -> float:
        """Return how long to wait before the next attempt: what the gateway asks, if it does."""
        if isinstance(error, BusyError) and error.retry_after_seconds is not None:
            asked = min(error.retry_after_seconds, _LAST_RETRY_SECONDS)
            return asked + self._options.backoff(0)  # never in step
        return self._options.backoff(attempt)

    async def _open(self) -> Transport | UnreachableError:
        """Open a line, or return why that failed and may be tried again."""
        try:
            with anyio.fail_after(self._options.open_seconds):
                return await self._connector.open(self.session.join())
        except TimeoutError:
            seconds = self._options.open_seconds
            error = UnreachableError(self._connector.address, f"no answer in {seconds:g} s")
        except UnreachableError as unreachable:
            error = unreachable
        first = self._task_status is not None
        if first and not self._options.keep_trying and not isinstance(error, BusyError):
            raise error
        log.warning("%s; trying again", error)
        return error

    async def _use(self, transport: Transport) -> TransportClosed:
        """Read a line to its end and tell how it ended."""
        closed: TransportClosed | ConnectionLostError | None = None
        self._transport = self._replaced = transport
        try:
            async with anyio.create_task_group() as tasks:
                self._line = tasks.cancel_scope
                tasks.start_soon(transport.keep_alive)
                try:
                    await self._read(transport)
                except (TransportClosed, ConnectionLostError) as error:
                    closed = error
                except TimeoutError:
                    closed = TransportClosed(ABNORMAL, "no welcome came")
                tasks.cancel_scope.cancel()
        finally:
            self._transport = self._line = None
        if closed is None:
            return _REJOIN
        await self._close_replaced()
        if isinstance(closed, ConnectionLostError):
            raise closed
        return closed

    async def _close_replaced(self) -> None:
        if self._replaced is not None:
            await self._replaced.aclose()
            self._replaced = None

    async def _read(self, transport: Transport) -> None:
        texts: Sequence[bytes] = ()
        with anyio.fail_after(self._options.open_seconds):
            while not self.session.joined:
                texts = texts or await transport.receive()
                self._process(texts[:1])
                texts = texts[1:]
        while True:
            await self._take_in(texts)
            if self.session.outgoing.waiting:
                await self._transmit()
            if self.session.should_rejoin:
                return
            texts = await transport.receive()

    async def _take_in(self, texts: Sequence[bytes]) -> None:
        at_once = max(1, self._options.buffer_messages // 2)
        for start in range(0, len(texts), at_once):
            if start:
                # A reader that keeps up must get its turn before the buffer is full.
                await anyio.lowlevel.checkpoint()
            if self.session.may_pause:
                await self._pause()
            self._process(texts[start : start + at_once])

    async def _pause(self) -> None:
        """Let whoever reads a long replay keep up, while it reads and nobody waits for the rest."""
        with anyio.move_on_after(_LONGEST_PAUSE_SECONDS):
            while self.session.may_pause:
                self._resumed = anyio.Event()
                with anyio.move_on_after(_PAUSE_SECONDS) as pause:
                    await self._resumed.wait()
                if pause.cancelled_caught:
                    return

    def _take_on(self, envelope: Envelope, rate_limit_seconds: float | None = None) -> None:
        patience = (
            self._options.rate_limit_seconds if rate_limit_seconds is None else rate_limit_seconds
        )
        self.session.send(envelope, give_up_at=self._clock() + patience)
        self._resumed.set()

    async def _transmit(self) -> None:
        if self._transport is None:
            return
        now = self._clock()
        texts = self.session.transmit(now)
        if texts:
            await self._transport.send(texts)
        due = self.session.outgoing.wake_at(now) if self.session.live else None
        if due is not None and (self._timer_at is None or due < self._timer_at) and self._tasks:
            self._timer_at = due
            self._tasks.start_soon(self._transmit_at, due)

    async def _transmit_at(self, due: float) -> None:
        await anyio.sleep(max(0.0, due - self._clock()))
        if self._timer_at == due:
            self._timer_at = None
        await self._transmit()

    # --- what a line brings ---

    def _process(self, texts: Sequence[bytes]) -> None:
        now = self._clock()
        receive = self.session.receive
        for text in texts:
            for effect in receive(text, now):
                self._apply(effect)
        self._arrived.set()

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Echoed(envelope):
                self._settle(envelope.id, envelope)
            case EnvelopeRefused(envelope, details) if envelope is not None:
                refused = Refused(envelope, details)
                if not self._settle(envelope.id, refused):
                    log.warning("%s", refused)
            case EnvelopeRefused(details=details):
                log.warning("the gateway complains, %s: %s", details.error, details.message)
            case Unsendable(envelope, error):
                if not self._settle(envelope.id, error):
                    log.warning("%s was not sent: %s", envelope.kind, error)
            case Answered(id, envelope):
                if id in self._exchanges:
                    self._exchanges.pop(id).settle(envelope)
            case Noted(id, envelope):
                if id in self._exchanges:
                    self._exchanges[id].note(envelope)
                    if envelope.kind == kinds.WITHDRAW:
                        del self._exchanges[id]  # nothing comes after it
            case Joined():
                if self._task_status is not None:
                    self._task_status.started()
                    self._task_status = None
            case Unreadable(error):
                log.error("an envelope that cannot be read was passed over: %s", error)
            case _:
                assert_never(effect)

    def _settle(self, id: str, outcome: Envelope | McppError) -> bool:
        waiter = self._waiters.get(id)
        if waiter is not None:
            waiter.settle(outcome)
        self._tell_settled()
        return waiter is not None

    def _tell_settled(self) -> None:
        if self._settled is not None:
            self._settled.set()
            self._settled = None

    async def _settlement(self) -> None:
        if self._settled is None:
            self._settled = anyio.Event()
        await self._settled.wait()


# We dropped the line ourselves, to be told again what did not fit.
_REJOIN: Final = TransportClosed(1000, "rejoining")
