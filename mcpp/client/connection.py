"""A session that is kept connected: opens transports, reads them, and reconnects.

One task (`run`) owns the transport. All other tasks use the session and wait for what `run` reads.
"""

import copy
import logging
import math
import random
import ssl
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, assert_never

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus

from mcpp import kinds
from mcpp.buffers import BoundedQueue
from mcpp.client.factory import new_envelope
from mcpp.client.pending import PendingEcho, PendingResponse
from mcpp.conversation.cards import PodCards
from mcpp.errors import (
    BusyError,
    ClosedError,
    ConnectionLostError,
    LostProposalError,
    McppError,
    Refused,
    TokenRefusedError,
    TokenUnavailableError,
    UnreachableError,
)
from mcpp.protocol.cards import card_digest
from mcpp.protocol.envelope import Envelope
from mcpp.session.effects import (
    Answered,
    Echoed,
    Effect,
    EnvelopeRefused,
    Joined,
    Noted,
    Served,
    Unreadable,
    Unsendable,
)
from mcpp.session.resumption import Delivery, Gap, HistoryEnd
from mcpp.session.session import REVOKED, ClientSession, is_final
from mcpp.transports.several import SeveralGateways
from mcpp.transports.transport import (
    ABNORMAL,
    Connector,
    TokenRenewal,
    Transport,
    TransportClosed,
)

logger = logging.getLogger("mcpp.client")

_FIRST_BACKOFF_SECONDS: Final = 0.1
_LAST_BACKOFF_SECONDS: Final = 10.0
# A gateway that is started again takes a second or two: twice as long each time would often be as
# long again as it was away.
_BACKOFF_GROWTH: Final = 1.5
# After a connection that lasted this long, the next gateway of several is tried sooner by a factor.
_STEADY_SECONDS: Final = 1.0
_MOVE_SHARE: Final = 0.1
# Upper bound on a busy gateway's Retry-After.
_LAST_RETRY_SECONDS: Final = 120.0
# How long leaving waits for the echoes of envelopes sent without `wait`, on top of the time that
# the gateway's rate limits require.
_LEAVE_SECONDS: Final = 2.0
# Reading a replay pauses for a slow reader. A reader that stalls for longer may itself be waiting
# for later messages, and a transport left unread for much longer would be considered broken.
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE_SECONDS: Final = 5.0
# A participant that leaves gets this long to come back: its line may only have been cut (P-50).
_RETURN_SECONDS: Final = 1.5
# The same reason for another attempt is logged this often.
_RETRY_LOG_SECONDS: Final = 60.0
# For sending from a cancelled task. A transport that takes longer is broken.
_SHIELDED_SECONDS: Final = 1.0


def backoff(attempt: int) -> float:
    """Return the seconds to wait before a reconnection attempt: exponential, with jitter."""
    longest = min(
        _LAST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * _BACKOFF_GROWTH ** min(attempt, 16)
    )
    return random.uniform(longest / 2, longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a connection behaves. The defaults suit an agent.

    Args:
        buffer_messages: messages buffered for the reader. When the buffer is full the transport
            is dropped, and resumed once there is room: nothing is lost.
        buffer_bytes: the bytes of these messages, with the same effect.
        unechoed_messages: envelopes sent and not echoed yet. Beyond that, `send` waits, even with
            `wait=False`.
        unechoed_bytes: the bytes of these envelopes, with the same effect.
        rate_limit_seconds: how long to wait out a rate limit for one envelope; 0 raises at once.
        open_seconds: time limit for opening a transport.
        welcome_seconds: time limit for the welcome. The gateway first counts what it will replay,
            which takes seconds after a long absence; one that is gone is noticed sooner.
        silence_seconds: silence after which the gateway is pinged.
        keep_trying: retry also if the gateway cannot be reached at first.
        backoff: returns the seconds to wait before attempt 0, 1, 2, …
        ssl_context: for `wss:` addresses; None trusts the authority in MCPP_CA, or the system's.
    """

    buffer_messages: int = 1024
    buffer_bytes: int = 32 * 1024 * 1024
    unechoed_messages: int = 1024
    unechoed_bytes: int = 32 * 1024 * 1024
    rate_limit_seconds: float = 30.0
    open_seconds: float = 10.0
    welcome_seconds: float = 120.0
    silence_seconds: float = 20.0
    keep_trying: bool = False
    backoff: Callable[[int], float] = backoff
    ssl_context: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        """Reject sizes below 1: the connection would stall."""
        sizes = ("buffer_messages", "buffer_bytes", "unechoed_messages", "unechoed_bytes")
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


class Connection:
    """A session, its current transport, and the tasks waiting on them. Owns the transport."""

    def __init__(
        self,
        session: ClientSession,
        connector: Connector,
        options: Options,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.session = session
        self.failure: ConnectionLostError | None = None
        self.connector = connector
        self._can_move = isinstance(connector, SeveralGateways)
        self._options = options
        self._clock = clock
        self._transport: Transport | None = None
        self._transport_scope: anyio.CancelScope | None = None
        self._replaced: Transport | None = None
        self._revoked: ClosedError | None = None  # why the last connection was closed
        self._tasks: TaskGroup | None = None
        self._task_status: TaskStatus[None] | None = None
        self._timer_at: float | None = None
        self._echoes: dict[str, PendingEcho] = {}
        self._responses: dict[str, PendingResponse] = {}
        self.cards = PodCards(self)
        self.card: bytes | None = None  # of this participant, as it is announced; empty: none
        self._arrived = anyio.Event()
        self._resumed = anyio.Event()
        self._settled: anyio.Event | None = None
        self._presence: dict[anyio.CancelScope, str] = {}
        self._presence_changed = anyio.Event()
        self._rejoined = anyio.Event()
        self._retry_logged: dict[str, float] = {}
        self.claims_changed = anyio.Event()  # set and replaced whenever claims change

    # --- for other tasks ---

    async def send(
        self, envelope: Envelope, *, wait: bool = True, rate_limit_seconds: float | None = None
    ) -> Envelope:
        """Send an envelope and return its echo, or without `wait` return the envelope at once.

        For a query (`pod/history`) the gateway's answer takes the place of the echo.

        Raises Refused, or ConnectionLostError once the connection has ended for good.
        """
        await anyio.lowlevel.checkpoint_if_cancelled()
        outgoing = self.session.outgoing
        pending = PendingEcho()
        try:
            while self._has_many_unechoed and self.failure is None:
                await self._wait_for_settlement()
            self.raise_if_closed()
            self._queue(envelope, rate_limit_seconds)
            if not wait:
                await self._transmit()
                return envelope
            self._echoes[envelope.id] = pending
            await self._transmit()
            return await pending.wait()
        except BaseException:
            # A cancelled wait cancels the sending, too, if the envelope is still queued.
            if wait and outgoing.discard(envelope.id) and not pending.echoed:
                self.forget(envelope.id)  # never sent, so there will be no response
            raise
        finally:
            self._echoes.pop(envelope.id, None)

    async def send_shielded(self, envelope: Envelope) -> None:
        """Send from a task that may be cancelled: without waiting for room or for the echo."""
        if self.failure is None:
            self._queue(envelope)
            with anyio.move_on_after(_SHIELDED_SECONDS, shield=True):
                await self._transmit()

    async def send_live(self, part: Envelope) -> bool:
        """Send a live part if that is possible at once; return whether it was sent."""
        text = None if self._transport is None else self.session.send_live(part, self._clock())
        if text is None or self._transport is None:
            return False
        await self._transport.send([text])
        return True

    async def announce_card(self, *, wait: bool = False) -> None:
        """Announce this participant's card, if the gateway does not have it already."""
        if self.card is None:
            return
        digest = card_digest(self.card) if self.card else None
        if self.session.card == digest:
            return
        payload = {"card": msgspec.json.decode(self.card) if self.card else None}
        envelope = new_envelope(kinds.CARD_REQUEST, payload, sender=self.session.name)
        await self.send(envelope, wait=wait)
        self.session.card = digest

    def start_soon(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start a task that ends with the connection."""
        if self._tasks is not None and self.failure is None:
            self._tasks.start_soon(function)

    def take(self) -> Delivery | HistoryEnd | Gap | None:
        """Return the next item in the log's order, or None if there is none yet."""
        item = self.session.take()
        if item is not None:
            self._resumed.set()
            if self.session.should_rejoin and self._transport_scope is not None:
                self._transport_scope.cancel()
        return item

    async def wait_for_messages(self) -> None:
        """Wait until more has arrived. Raises ConnectionLostError if the connection has ended."""
        # A task that is cancelled together with the connection must not see the connection's error.
        await anyio.lowlevel.checkpoint_if_cancelled()
        self.raise_if_closed()
        if self._arrived.is_set():
            self._arrived = anyio.Event()  # shared by all waiting tasks
        await self._arrived.wait()

    def expect(self, request: Envelope, participant: str, pending: PendingResponse) -> None:
        """Expect this participant's response to a request, or to a proposal's fulfilment."""
        self.raise_if_closed()
        self._responses[request.id] = pending
        self.session.expect(request, participant)

    def learn(self, envelope: Envelope) -> None:
        """Apply an envelope of the past to pending proposals."""
        for effect in self.session.learn(envelope):
            self._apply(effect)

    @contextmanager
    def recording(self) -> Iterator[BoundedQueue[Envelope]]:
        """Record what answers arrive during the block: what is read of the past precedes them."""
        recorded = self.session.recorded = BoundedQueue()
        try:
            yield recorded
        finally:
            self.session.recorded = None

    def is_pending(self, id: str) -> bool:
        """Return whether a response to the request or proposal with this id may still come."""
        return id in self._responses

    def forget(self, id: str) -> None:
        """Stop expecting a response to the request or proposal with this id."""
        self.session.forget(id)
        self._responses.pop(id, None)

    @contextmanager
    def while_present(self, participant: str) -> Iterator[anyio.CancelScope]:
        """Cancel the block when a participant has left the pod and does not come back soon."""
        with anyio.CancelScope() as scope:
            self._presence[scope] = participant
            self._check_presence(scope, participant)
            try:
                yield scope
            finally:
                del self._presence[scope]

    async def wait_for_presence(self, participant: str) -> None:
        """Wait until a participant is in the pod. Raises ConnectionLostError."""
        while self.session.is_absent(participant):
            self.raise_if_closed()
            await self._presence_changed.wait()

    async def wait_for_update(self) -> None:
        """Wait until the list of participants changes. Raises ConnectionLostError."""
        self.raise_if_closed()
        await self._presence_changed.wait()

    def wake_claims(self) -> None:
        """Wake the tasks that wait for a claim."""
        self.claims_changed.set()
        self.claims_changed = anyio.Event()

    async def wait_for_rejoin(self) -> None:
        """Wait until another connection has been opened. Raises ConnectionLostError."""
        await self._rejoined.wait()
        self.raise_if_closed()

    def _check_presence(self, scope: anyio.CancelScope, participant: str) -> None:
        if not self.session.is_absent(participant):
            scope.deadline = math.inf
        elif scope.deadline == math.inf:
            scope.deadline = anyio.current_time() + _RETURN_SECONDS

    def raise_if_closed(self) -> None:
        """Raise the error that ended the connection, if it has ended."""
        if self.failure is not None:
            # A copy, because each raise adds a traceback.
            raise copy.copy(self.failure)

    async def flush(self) -> None:
        """Wait a limited time until all sent envelopes are echoed."""
        outgoing = self.session.outgoing
        needed = outgoing.seconds_needed(self._clock())
        with anyio.move_on_after(2 * needed + _LEAVE_SECONDS):  # twice, for slow networks
            while len(outgoing) and self.failure is None:
                await self._wait_for_settlement()

    def close(self, failure: ConnectionLostError) -> None:
        """End for good: raise the error in all waiting tasks, and in all later calls."""
        if self.failure is None:
            self.failure = failure
            unsent = [id for id in self.session.outgoing.unsettled() if id not in self._echoes]
            if unsent:  # sent with wait=False: no task gets the error
                logger.warning("%s: %d envelopes may be lost", self.session.name, len(unsent))
        for echo in self._echoes.values():
            echo.settle(copy.copy(self.failure))
        for response in self._responses.values():
            response.settle(copy.copy(self.failure))
        self._arrived.set()
        self._presence_changed.set()
        self._rejoined.set()
        self.wake_claims()
        self._notify_settled()

    # --- staying connected ---

    async def run(self, tasks: TaskGroup, *, task_status: TaskStatus[None]) -> None:
        """Stay connected until the connection ends for good; `started` when first joined."""
        self._tasks = tasks
        self._task_status = task_status
        try:
            await self._reconnect()
        except ConnectionLostError as error:
            self.close(error)
            if self._task_status is not None:
                raise
        finally:
            await self._close_replaced()

    async def _reconnect(self) -> None:
        attempt, waited = 0, 0.0
        while True:
            transport = await self._open()
            # Not while the gateway is busy: replacing an open transport is silent, but closing it
            # first broadcasts a leave and a join, which fills everyone's buffers.
            if not isinstance(transport, BusyError):
                await self._close_replaced()
            if isinstance(transport, UnreachableError):
                waited = self._retry_seconds(transport, attempt)
            else:
                opened, position = self._clock(), self.session.position
                self._revoked = None
                closed = await self._use(transport)
                if is_final(closed.code):
                    await self._check_newer_token(closed)
                # Reset the backoff only if the transport held longer than the last wait, or
                # delivered something.
                held = self._clock() - opened >= waited or self.session.position != position
                if self.session.joined and held:
                    attempt = 0
                if closed is _REJOIN:
                    continue
                cause = f"connection lost ({closed.code} {closed.reason}), reconnecting"
                self._log_retry(cause, logging.INFO)
                waited = self._options.backoff(attempt)
                if self._can_move and attempt == 0 and self._clock() - opened >= _STEADY_SECONDS:
                    waited *= _MOVE_SHARE
            await anyio.sleep(waited)
            attempt += 1

    async def _check_newer_token(self, closed: TransportClosed) -> None:
        """Raise ClosedError unless a revoked token was replaced by another one before (S-12)."""
        self._revoked = ClosedError(closed.code, closed.reason)
        if closed.code != REVOKED or not isinstance(self.connector, TokenRenewal):
            raise self._revoked
        with anyio.move_on_after(self._options.open_seconds):  # a slow source may have one
            if not await self.connector.has_newer_token():
                raise self._revoked

    def _log_retry(self, cause: str, level: int) -> None:
        """Log why the connection is tried again: once, then every minute while it is the same."""
        now = self._clock()
        if self._retry_logged.get(cause, -math.inf) + _RETRY_LOG_SECONDS <= now:
            self._retry_logged = {cause: now}  # another cause in between is logged again
            logger.log(level, "%s", cause)

    def _retry_seconds(self, error: UnreachableError, attempt: int) -> float:
        """Return the seconds before the next attempt, respecting the gateway's Retry-After."""
        if isinstance(error, BusyError) and error.retry_after_seconds is not None:
            asked = min(error.retry_after_seconds, _LAST_RETRY_SECONDS)
            return asked + self._options.backoff(0)  # jitter
        return self._options.backoff(attempt)

    async def _open(self) -> Transport | UnreachableError:
        """Open a transport, or return the error if it may be retried."""
        try:
            with anyio.fail_after(self._options.open_seconds):
                return await self.connector.open(self.session.join())
        except TimeoutError:
            seconds = self._options.open_seconds
            error = UnreachableError(self.connector.address, f"no answer in {seconds:g} s")
        except UnreachableError as unreachable:
            error = unreachable
        except TokenRefusedError as refused:
            if self._task_status is not None:
                raise
            if self._revoked is not None:  # and the next token is no better
                raise self._revoked from None
            reason = f"the gateway refused it with 401: {refused.reason}"
            error = TokenUnavailableError(self.connector.address, reason)
        first = self._task_status is not None
        if first and not self._options.keep_trying and not isinstance(error, BusyError):
            raise error
        self._log_retry(f"{error}; retrying", logging.WARNING)
        return error

    async def _use(self, transport: Transport) -> TransportClosed:
        """Read a transport until it closes and return how it closed."""
        closed: TransportClosed | ConnectionLostError | None = None
        self._transport = self._replaced = transport
        try:
            async with anyio.create_task_group() as tasks:
                self._transport_scope = tasks.cancel_scope
                tasks.start_soon(transport.keep_alive)
                try:
                    await self._read(transport)
                except (TransportClosed, ConnectionLostError) as error:
                    closed = error
                except TimeoutError:
                    closed = TransportClosed(ABNORMAL, "no welcome received")
                tasks.cancel_scope.cancel()
        finally:
            self._transport = self._transport_scope = None
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
        with anyio.fail_after(self._options.welcome_seconds):
            while not self.session.joined:
                texts = texts or await transport.receive()
                self._process(texts[:1])
                texts = texts[1:]
        while True:
            await self._process_in_chunks(texts)
            if self.session.outgoing.waiting:
                await self._transmit()
            if self.session.should_rejoin:
                return
            texts = await transport.receive()

    async def _process_in_chunks(self, texts: Sequence[bytes]) -> None:
        size = max(1, self._options.buffer_messages // 2)
        for start in range(0, len(texts), size):
            if start:
                # Let a reader that keeps up run before the buffer is full.
                await anyio.lowlevel.checkpoint()
            if self.session.may_pause:
                await self._pause()
            self._process(texts[start : start + size])

    async def _pause(self) -> None:
        """Pause a long replay while its reader catches up, as long as it makes progress."""
        with anyio.move_on_after(_LONGEST_PAUSE_SECONDS):
            while self.session.may_pause:
                self._resumed = anyio.Event()
                with anyio.move_on_after(_PAUSE_SECONDS) as pause:
                    await self._resumed.wait()
                if pause.cancelled_caught:
                    return

    @property
    def _has_many_unechoed(self) -> bool:
        outgoing, options = self.session.outgoing, self._options
        return (
            len(outgoing) >= options.unechoed_messages
            or outgoing.size_bytes >= options.unechoed_bytes
        )

    def _queue(self, envelope: Envelope, rate_limit_seconds: float | None = None) -> None:
        seconds = (
            self._options.rate_limit_seconds if rate_limit_seconds is None else rate_limit_seconds
        )
        self.session.send(envelope, give_up_at=self._clock() + seconds)
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

    # --- receiving ---

    def _process(self, texts: Sequence[bytes]) -> None:
        now = self._clock()
        receive = self.session.receive
        changes, was_live = self.session.presence_changes, self.session.live
        claims = self.session.claims.changes
        for text in texts:
            for effect in receive(text, now):
                self._apply(effect)
        if self.session.presence_changes != changes or self.session.live != was_live:
            self._notify_presence()
        if self.session.claims.changes != claims:
            self.wake_claims()
        self._arrived.set()

    def _notify_presence(self) -> None:
        for scope, participant in self._presence.items():
            self._check_presence(scope, participant)
        self._presence_changed.set()
        self._presence_changed = anyio.Event()

    def _apply(self, effect: Effect) -> None:
        match effect:
            case Echoed(envelope):
                self._settle(envelope.id, envelope)
            case Served(query, answer):
                self._settle(query.id, answer)
            case EnvelopeRefused(envelope, details) if envelope is not None:
                refused = Refused(envelope, details)
                if not self._settle(envelope.id, refused):
                    # An older gateway keeps no cards.
                    is_optional = envelope.kind == kinds.CARD_REQUEST
                    logger.log(logging.DEBUG if is_optional else logging.WARNING, "%s", refused)
            case EnvelopeRefused(details=details):
                logger.warning("error from the gateway, %s: %s", details.error, details.message)
            case Unsendable(envelope, error):
                if not self._settle(envelope.id, error):
                    logger.warning("cannot send %s: %s", envelope.kind, error)
            case Answered(id, envelope):
                if id in self._responses:
                    self._responses.pop(id).settle(envelope)
            case Noted(id, envelope):
                if id in self._responses:
                    self._responses[id].add_update(envelope)
                    if envelope.kind == kinds.WITHDRAW:
                        del self._responses[id]  # a withdrawal is final
            case Joined():
                if self.card is not None:
                    self.start_soon(self.announce_card)
                if effect.lost_log:
                    self._settle_lost()
                self._rejoined.set()
                self._rejoined = anyio.Event()
                if self._task_status is not None:
                    self._task_status.started()
                    self._task_status = None
            case Unreadable(error):
                logger.error("skipped an invalid envelope: %s", error)
            case _:
                assert_never(effect)

    def _settle_lost(self) -> None:
        """End the proposals that were in a lost log: no participant that joins will see them."""
        for id, pending in list(self._responses.items()):
            if pending.is_lost_with_log and id not in self.session.outgoing:
                pending.settle(LostProposalError())
                self.forget(id)

    def _settle(self, id: str, outcome: Envelope | McppError) -> bool:
        pending = self._echoes.get(id)
        if pending is not None:
            pending.settle(outcome)
        self._notify_settled()
        return pending is not None

    def _notify_settled(self) -> None:
        if self._settled is not None:
            self._settled.set()
            self._settled = None

    async def _wait_for_settlement(self) -> None:
        if self._settled is None:
            self._settled = anyio.Event()
        await self._settled.wait()


# We closed the transport ourselves, to get what did not fit into the buffer again.
_REJOIN: Final = TransportClosed(1000, "rejoining")
