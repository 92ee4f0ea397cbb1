"""One pod's way to the log and to the other gateways."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec
import uuid6

from mcpp_gateway.cluster.archive import PodArchive
from mcpp_gateway.cluster.nats_link import LinkError, NatsLink, NatsMessage
from mcpp_gateway.cluster.streams import StreamLostError, Streams, token
from mcpp_gateway.core.cluster.leading.delegation import PROBE_SECONDS
from mcpp_gateway.core.cluster.messages import Forward, PodBeat, RelayedParts, encode
from mcpp_gateway.core.cluster.ordering import Ordering
from mcpp_gateway.core.cluster.pod import ClusterPod
from mcpp_gateway.core.cluster.records import ClusterState, decode_bare, shows_loss
from mcpp_gateway.core.effects import Effect

logger = logging.getLogger("mcpp.gateway")

_REPAIR_SECONDS: Final = 0.25
_COMPARE_SECONDS: Final = 0.02  # of a leadership that others claim at the same time
_LIVE_BYTES: Final = 262_144
_RETRY_SECONDS: Final = 0.5
_REFUSED_LOG_SECONDS: Final = 10.0


class _AckError(msgspec.Struct):
    description: str = ""


class _Ack(msgspec.Struct):
    seq: int = 0
    error: _AckError | None = None


_decode_ack = msgspec.json.Decoder(_Ack).decode


class PodLink:
    """Implements the wire of one clustered pod, and feeds it the log in order."""

    def __init__(
        self,
        name: str,
        link: NatsLink,
        streams: Streams,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        perform: Callable[[list[Effect]], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self.pod: ClusterPod
        self.archive: PodArchive
        self.is_open = False
        self.is_active = True  # something may be due; otherwise `step` is called rarely
        self._name = name
        self._link = link
        self._streams = streams
        self._loop = loop
        self._clock = clock
        self._perform = perform
        self._on_failure = on_failure
        self._log = streams.log_subject(name)
        self._ack = f"{link.replies}.ack.{token(name)}"
        self._ordering = Ordering(1)
        self._repairing: asyncio.Task[None] | None = None
        self._missing_since: float | None = None
        self._awake = False
        self._probing = False
        self._is_reported = False  # that the log holds records of a newer version
        self._refused_at = float("-inf")  # when a refused record was logged last
        self._live: list[bytes] = []  # parts for the other gateways, of this tick
        self._live_bytes = 0
        self._early: list[tuple[int, bytes]] = []  # records that came before the log was read

    async def open(self) -> None:
        """Read the state and the log up to its present end; try again until it works.

        Then copy what this gateway has not copied yet: it serves the whole log from the beginning.
        """
        is_copied = False
        while not is_copied:
            try:
                if not self.is_open:
                    await self._open()
                await self._compare_copy()
                await self.archive.open(self._ordering.next - 1)
                is_copied = True
            except LinkError as error:
                facts = {"pod": self._name, "reason": str(error)}
                logger.warning("cannot read the log yet", extra=facts)
                await asyncio.sleep(_RETRY_SECONDS)

    # --- the wire of the pod --------------------------------------------------------------------

    def append(self, record: bytes) -> None:
        """Add a record to the log."""
        self._link.send(self._log, record, self._ack)

    def forward(self, gateway: str, message: bytes) -> None:
        """Send commands to a gateway; if it is not there, the servers say so."""
        name = token(self._name)
        subject = f"{self._link.prefix}.{name}.in.{gateway}"
        self._link.send(subject, message, f"{self._link.replies}.forward.{name}.{gateway}")

    def relay(self, text: bytes) -> None:
        """Send a live part to all other gateways at the end of this tick.

        Beside the log, and only while little waits for the servers: records come first.
        """
        if self._link.queued_bytes + self._live_bytes + len(text) <= _LIVE_BYTES:
            self._live.append(text)
            self._live_bytes += len(text)
            self.wake()

    def wake(self) -> None:
        """Flush at the end of this tick."""
        self.is_active = True
        if not self._awake:
            self._awake = True
            self._loop.call_soon(self._flush)

    def save(self, state: ClusterState) -> None:
        """Store a state."""
        self._streams.save_state(self._name, state, str(uuid6.uuid7()))

    # --- messages -------------------------------------------------------------------------------

    def receive_record(self, message: NatsMessage) -> None:
        """Take a record that was stored just now."""
        self._take(int(message.headers["Nats-Sequence"]), message.data)

    def receive_forward(self, forward: Forward) -> None:
        """Take commands of another gateway."""
        self.pod.delegation.hear(forward, self._clock())

    def receive_live(self, parts: RelayedParts) -> None:
        """Take live parts of another gateway."""
        if not self.is_open:
            return
        now = self._clock()
        effects = [self.pod.relay(text, now) for text in parts.texts]
        self._perform([effect for effect in effects if effect is not None])

    def receive_ack(self, message: NatsMessage) -> None:
        """Take the log's answer to a record of this gateway."""
        if message.status:  # no server is responsible now: another one is being elected
            self.pod.delegation.append_failed()
            return
        ack = _decode_ack(message.data)
        if ack.error is None:
            self._expect(ack.seq)
        else:  # such as no space: not to be tried again sooner than anything else
            self._report_refused(ack.error.description)

    def receive_beat(self, gateway: str, beat: PodBeat | None) -> None:
        """Take a beat of a gateway that leads: the end of the log; None: it does not know it."""
        if beat is not None:
            self._expect(beat.sequence)
        else:
            self.is_active = True
        self.pod.delegation.hear_beat(gateway, None if beat is None else beat.term)

    def lose(self, gateway: str) -> None:
        """Take note that a gateway cannot be reached."""
        if self.is_open:
            self.pod.delegation.lose(gateway, self._clock())

    def step(self, now: float) -> None:
        """Do what is due by the clock, about ten times a second."""
        if not self.is_open:
            return
        self.pod.delegation.step(now)
        self.archive.step(self._ordering.next - 1, now)
        if not self._ordering.is_missing:
            self._missing_since = None
        elif self._missing_since is None:
            self._missing_since = now
        elif now - self._missing_since >= _REPAIR_SECONDS and self._repairing is None:
            self._missing_since = now
            self._repairing = self._loop.create_task(self._repair())
        is_complete = not self._ordering.is_missing and self.archive.has(self._ordering.next - 1)
        self.is_active = not is_complete or not self.pod.delegation.is_quiet

    @property
    def lag(self) -> int:
        """How many records are known to exist that were not applied yet."""
        return self._ordering.known - self._ordering.next + 1

    # --- private --------------------------------------------------------------------------------

    async def _open(self) -> None:
        state = None
        if self._ordering.next == 1:
            state = await self._streams.load_state(self._name)
        # After the state: a leader may store both meanwhile, and the state is not ahead then.
        end = await self._streams.create(self._name)
        self._ordering.expect(end)
        at = self._ordering.next
        if state is not None and state.sequence > end:
            reason = f"has lost its end: it has {end} records, and a state of {state.sequence}"
            raise StreamLostError(f"the log of pod {self._name!r} {reason}")
        if state is not None:
            self.pod.begin(state)
            at = state.window_sequence
            for _ in self._ordering.skip(state.sequence + 1):
                raise AssertionError("nothing is applied before the state")
        while at <= end:
            found = await self._streams.read(self._name, at)
            if not found:
                break
            await self._check_gap(max(at, self._ordering.next), found[0][0])
            for sequence, data in found:
                if state is not None and sequence <= state.sequence:
                    self.pod.fill(data)
                else:
                    self._take_stored(sequence, data)
            at = found[-1][0] + 1
        self.is_open = True
        self.pod.delegation.may_lead = not self.pod.outdated
        if self.pod.outdated:
            self._report_newer_version()
        for sequence, data in self._early:
            if sequence >= self._ordering.next:  # the others were read from the stream
                self._take(sequence, data)
        self._early.clear()

    async def _compare_copy(self) -> None:
        """Begin a new epoch if an earlier run has copied an entry that the log does not hold.

        The log has lost it while no gateway ran (N-14). No client is admitted before that.
        """
        pod, is_reported = self.pod, False
        await self.archive.recover(pod.replica.epoch)
        while self.archive.shows_loss() and not pod.outdated:
            # Once it leads, it has applied everything that is before its own claim.
            if pod.is_leader:
                if not is_reported:
                    reason = "an entry that was copied here is not in it"
                    facts = {"pod": self._name, "reason": reason}
                    logger.error("the log has lost its end; a new epoch begins", extra=facts)
                    is_reported = True
                pod.delegation.begin_epoch(self._clock())
            else:
                pod.delegation.claim_anew(self._clock())
            await asyncio.sleep(_COMPARE_SECONDS)
            await self.archive.recover(pod.replica.epoch)

    def _expect(self, sequence: int) -> None:
        self._ordering.expect(sequence)
        self.is_active = self.is_active or self._ordering.is_missing

    def _take(self, sequence: int, data: bytes) -> None:
        self.is_active = True
        if not self.is_open:
            self._early.append((sequence, data))
            return
        try:
            self._check_place(sequence, data, is_new=True)
        except StreamLostError as error:
            self._on_failure(error)
            return
        for each, record in self._ordering.add(sequence, data):
            self._apply(each, record)

    def _take_stored(self, sequence: int, data: bytes) -> None:
        """Take a record that was read from the stream: those before it do not exist."""
        for each, record in self._ordering.skip(sequence):
            self._apply(each, record)
        for each, record in self._ordering.add(sequence, data):
            self._apply(each, record)

    def _check_place(self, sequence: int, data: bytes, *, is_new: bool = False) -> None:
        """Raise StreamLostError if the log has lost its end, and stores at a place a second time.

        This gateway would go on from records that no other one finds (N-14). A record that merely
        comes late, or again, shows nothing. Where it is not known which record was at the place,
        one that was stored just now (`is_new`) shows it by itself.
        """
        if sequence >= self._ordering.next:
            return
        is_repeat = self._ordering.is_repeat(sequence, data)
        if is_repeat is False or (is_repeat is None and is_new and _shows_loss(sequence, data)):
            known = f"{self._ordering.next - 1} records were applied here"
            reason = f"the log of pod {self._name!r} has lost its end: {known}"
            raise StreamLostError(f"{reason}, and record {sequence} is stored anew")

    async def _check_gap(self, wanted: int, found: int) -> None:
        """Raise StreamLostError if records were deleted before they were read here."""
        if found > wanted and await self._streams.first(self._name) > wanted:
            reason = f"the log of pod {self._name!r} begins behind what this gateway knows"
            raise StreamLostError(reason)

    def _apply(self, sequence: int, record: bytes) -> None:
        try:
            effects = self.pod.apply(sequence, record, self._clock())
            if effects:
                self._perform(effects)
            self.archive.take(sequence, record)
            if self.pod.outdated:
                self._report_newer_version()
        except Exception as error:
            # A record that was applied in part would make this gateway differ from the others.
            self._on_failure(error)
            raise

    def _report_newer_version(self) -> None:
        if not self._is_reported:
            self._is_reported = True
            reason = (
                "the log holds records of a newer version: this gateway follows, but never leads"
            )
            logger.warning(reason, extra={"pod": self._name})

    def _report_refused(self, reason: str) -> None:
        now = self._loop.time()
        if now >= self._refused_at + _REFUSED_LOG_SECONDS:
            self._refused_at = now
            facts = {"pod": self._name, "reason": reason}
            logger.error("JetStream does not accept records", extra=facts)

    def _flush(self) -> None:
        self._awake = False
        self.pod.delegation.flush(self._clock())
        if not self._probing and self.pod.delegation.outgoing:
            self._probing = True
            self._loop.call_later(PROBE_SECONDS, self._probe)
        if self._live:
            parts = RelayedParts(self.pod.delegation.gateway, self._live)
            self._link.send(f"{self._link.prefix}.{token(self._name)}.live", encode(parts))
            self._live, self._live_bytes = [], 0

    def _probe(self) -> None:
        wait = self.pod.delegation.probe(self._clock())
        self._probing = wait is not None
        if wait is not None:
            self._loop.call_later(wait, self._probe)

    async def _repair(self) -> None:
        """Read what has not arrived."""
        try:
            while self._ordering.is_missing:
                # From the last one that was applied on: it shows whether the log is still the same.
                found = await self._streams.read(self._name, max(1, self._ordering.next - 1))
                if not found:
                    return
                before = self._ordering.next
                await self._check_gap(before, found[0][0])
                for sequence, data in found:
                    self._check_place(sequence, data)
                    self._take_stored(sequence, data)
                if self._ordering.next == before:
                    return
        except StreamLostError as error:
            self._on_failure(error)
        except LinkError as error:
            logger.warning("cannot repair a gap", extra={"pod": self._name, "reason": str(error)})
        finally:
            self._repairing = None


def _shows_loss(sequence: int, data: bytes) -> bool:
    try:
        record = decode_bare(data)
    except msgspec.DecodeError:
        return False
    return record is not None and shows_loss(sequence, record)
