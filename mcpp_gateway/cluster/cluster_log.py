"""The logs of a gateway's pods in a cluster: one connection, signs of life, health.

Every gateway sends a beat four times a second, with the pods that it leads. A beat says which
records exist, so that a gateway notices what it has missed.
"""

import asyncio
import logging
import os
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec
import uuid6

from mcpp_gateway.cluster.archive import PodArchive
from mcpp_gateway.cluster.blob_stream import BlobStream
from mcpp_gateway.cluster.log_copy import CopyFolder, LogCopy
from mcpp_gateway.cluster.nats_link import LinkError, NatsLink, NatsMessage
from mcpp_gateway.cluster.pod_link import PodLink
from mcpp_gateway.cluster.shared.secrets import SharedSecrets
from mcpp_gateway.cluster.streams import Streams, token
from mcpp_gateway.config import ClusterSection, Config, ConfigError
from mcpp_gateway.core.cluster.leading.leader import MAX_BATCH_BYTES
from mcpp_gateway.core.cluster.leading.leadership import Silence
from mcpp_gateway.core.cluster.messages import (
    Beat,
    decode_beat,
    decode_forward,
    decode_live,
    encode,
)
from mcpp_gateway.core.cluster.pod import ClusterPod
from mcpp_gateway.core.cluster.wire import ClusterOptions
from mcpp_gateway.core.effects import Effect, ReadHistory
from mcpp_gateway.core.history.pages import Source
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.sessions import ParticipantSettings
from mcpp_gateway.storage.helper.process import HelperProcess
from mcpp_gateway.storage.history_reader import HistoryReader

if TYPE_CHECKING:
    from mcpp_gateway.cluster.shared.tokens import SharedTokens

logger = logging.getLogger("mcpp.gateway")

T = TypeVar("T")

_STEP_SECONDS: Final = 0.1
_BEAT_SECONDS: Final = 0.25
_TURNS: Final = 10  # a pod without activity has every tenth step: once a second
_HAND_OVER_SECONDS: Final = 2.0
# Shorter than clients wait for a gateway that does not answer.
_SUSPENDED_SECONDS: Final = 1.0
_HOLD_SECONDS: Final = 0.3
_OPENED_AT_ONCE: Final = 8
_FORGET_SECONDS: Final = 600.0
_WAIT_SECONDS: Final = 0.005
_SPARE_BYTES: Final = 65_536
_COPY_THREADS: Final = 2
_NAMED_PODS: Final = 3  # in a line of the log
_REPORT_SECONDS: Final = 1.0  # a client that moves to another server takes a tenth of this
_RETRY_SECONDS: Final = 1.0
_DAY_SECONDS: Final = 86_400.0
# The log is out of reach if a command has had no outcome for so long (G-53).
_STALLED_SECONDS: Final = 3.0
# Or if nothing was stored for so long, and JetStream, which is asked now and then, answers nothing:
# its servers have no majority. Longer than most elections.
PROOF_SECONDS: Final = 8.0
_ASK_SECONDS: Final = 2.0
_COMMAND_SECONDS: Final = 5.0  # that a command waits for the servers


class ClusterLog:
    """The pods of one gateway in a cluster. Owns the connection and the timers."""

    def __init__(
        self,
        config: Config,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        perform: Callable[[Iterable[Effect]], None],
        on_commit: Callable[[], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        section = config.cluster
        self.gateway = f"g{secrets.token_hex(5)}"
        self.address = ""
        self.stopping = False
        self._largest_message_bytes = config.largest_message_bytes
        self._loop = loop
        self._clock = clock
        self._perform = perform
        self._on_commit = on_commit
        self._on_failure = on_failure
        self._silence = Silence()
        self._options = ClusterOptions(rejoin_seconds=config.log.rejoin_seconds)
        self._retention = config.log.retention
        self._copies = CopyFolder(Path(config.log.path))
        self._executor = ThreadPoolExecutor(_COPY_THREADS, thread_name_prefix="copy")
        self._history = HistoryReader(loop, clock, perform)
        self._indexer = HelperProcess()
        self._link = new_link(section, self.gateway)
        self._streams = Streams(self._link, section.replicas, config.log.retention)
        self.secrets = SharedSecrets(self._link, self._streams)
        self.tokens: SharedTokens | None = None  # once signed tokens are in use
        self._with_key = False
        self._pods: dict[str, PodLink] = {}
        self.blobs = BlobStream(self._link, self._streams, self._leads)
        self._opening = asyncio.Semaphore(_OPENED_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next_beat = 0.0
        self._stepped_at = float("inf")
        self._turn = 0  # which of the pods without activity are looked at
        self._had_servers = False
        self._connected = False
        self._proved_at = float("-inf")  # when the servers last had a majority
        self._unreachable_seconds = section.unreachable_seconds
        self._reached_at = 0.0
        self._lost_pods: set[str] = set()  # whose log was reported as out of reach
        self._lost_since = 0.0  # when all logs could last be reached

    def open_pod(
        self, name: str, settings: Iterable[ParticipantSettings], limits: PodLimits
    ) -> ClusterPod:
        """Return a pod, whose log is read as soon as the cluster can be reached."""
        link = PodLink(
            name,
            self._link,
            self._streams,
            loop=self._loop,
            clock=self._clock,
            perform=self._perform_and_resume,
            on_failure=self._on_failure,
        )
        link.pod = ClusterPod(
            name,
            settings,
            limits,
            new_id=lambda: str(uuid6.uuid7()),
            gateway=self.gateway,
            wire=link,
            silence=self._silence,
            options=self._options,
        )
        link.archive = PodArchive(
            name,
            LogCopy(self._copies.path / name, self._indexer.index),
            self._streams,
            journal=link.pod.replica.journal,
            executor=self._executor,
            retain=self._retain,
        )
        self._pods[token(name)] = link
        if self._connected:
            self._start(self._open(link))
        return link.pod

    async def connect(self) -> None:
        """Connect and read the logs. Returns when everything was read. Raises ConfigError."""
        try:
            await self._link.connect()
        except LinkError as error:
            raise ConfigError(str(error)) from None
        self.check_message_size(self._largest_message_bytes)
        prefix = self._link.prefix
        self._link.on_reply("ack", self._receive_ack)
        self._link.on_reply("forward", self._receive_no_responders)
        await self._link.subscribe(f"{prefix}.*.out", self._receive_record)
        await self._link.subscribe(f"{prefix}.*.in.{self.gateway}", self._receive_forward)
        await self._link.subscribe(f"{prefix}.*.live", self._receive_live)
        await self._link.subscribe(f"{prefix}.beat", self._receive_beat)
        self._timer = self._loop.call_later(_STEP_SECONDS, self._step)
        await self._persist(self._streams.create_states)
        await self._persist(self.secrets.open)
        if self.tokens is not None:
            await self._open_tokens(self.tokens, with_key=self._with_key)
        self._connected = True
        self._proved_at = self._clock()
        self._start(self._prove())
        await asyncio.gather(*(self._open(link) for link in self._pods.values()))
        self._beat(self._clock())

    def check_message_size(self, largest: int) -> None:
        """Raise ConfigError if the servers refuse messages of as many bytes as are allowed.

        The pod would try to store such a message again and again, and nothing after it.
        """
        payload = self._link.max_payload
        needed = largest + MAX_BATCH_BYTES + _SPARE_BYTES
        if payload < needed:
            raise ConfigError(
                f"cluster.servers: max_payload is {payload}; messages of max_message_bytes = "
                f"{largest} need {needed}"
            )

    def _leads(self, pod: str) -> bool:
        link = self._pods.get(token(pod))
        return link is not None and link.pod.is_leader

    def share_tokens(self, *, with_key: bool, on_change: Callable[[], None]) -> "SharedTokens":
        """Return the signed tokens that all gateways have in common.

        They are read as soon as the cluster can be reached. `with_key` creates a signing key if
        there is none; `on_change` is called when the tokens have changed.
        """
        if self.tokens is None:
            from mcpp_gateway.cluster.shared.tokens import SharedTokens

            self.tokens = SharedTokens(self._link, self._streams)
        self.tokens.on_change = on_change
        if self._connected:
            self._start(self._open_tokens(self.tokens, with_key=with_key))
        else:
            self._with_key = with_key
        return self.tokens

    async def shared_key(self, candidate: bytes) -> bytes:
        """Return the key that all gateways sign with: the first one that any of them brought."""
        return await self._persist(lambda: self.secrets.key(candidate))

    @property
    def is_reachable(self) -> bool:
        """Whether the log can be reached, as far as this gateway can tell."""
        now = self._clock()
        is_there = self._connected and self._has_servers(now)
        return is_there and all(self._reaches(link, now) for link in self._pods.values())

    @property
    def waiting_bytes(self) -> int:
        """The bytes of texts that have no outcome yet, over all pods."""
        return sum(link.pod.delegation.waiting_bytes for link in self._pods.values())

    @property
    def links(self) -> Iterable[PodLink]:
        """The pods' links, for metrics."""
        return self._pods.values()

    def close_stalled(self, now: float) -> list[Effect]:
        """Return what closes the sessions of pods whose log is out of reach for long (G-53)."""
        if self._link.is_connected or not self._reached_at:
            self._reached_at = now
        lost = now - self._reached_at >= self._unreachable_seconds
        return [
            effect
            for link in self._pods.values()
            if lost or link.pod.waiting_seconds(now) >= self._unreachable_seconds
            for effect in link.pod.close_all(now)
        ]

    def read_history(self, pod: PodCore, request: ReadHistory) -> None:
        """Read a page of a pod's log on another thread, and let the pod answer with it."""
        self._history.read(pod, self._copy(pod), request)

    def read(self, pod: PodCore, function: Callable[[Source], T]) -> "asyncio.Future[T]":
        """Call a function with a pod's log as it is now, on the thread that reads history."""
        return self._history.run(self._copy(pod), function)

    async def hand_over(self) -> None:
        """Let other gateways lead, once everything decided here is committed."""
        self.stopping = True
        await self._wait_for(lambda pod: pod.delegation.hand_over(self._clock()))
        self._beat(self._clock())

    async def say_goodbye(self) -> None:
        """Tell the leader that this gateway's sessions are gone."""
        incarnations = {}
        for link in self._pods.values():
            incarnations[link.pod] = link.pod.delegation.origin
            link.pod.stop(self._clock())
        await self._wait_for(lambda pod: pod.delegation.origin != incarnations[pod])

    async def close(self) -> None:
        """End the timers and the connection."""
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        if self.tokens is not None:
            self.tokens.close()
        await self._link.close()
        self._history.close()
        self._indexer.close()
        for link in self._pods.values():
            await link.archive.close()
        self._executor.shutdown()
        self._copies.close()

    # --- private --------------------------------------------------------------------------------

    async def _persist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return what a call returns; repeat it until the servers answer."""
        while True:
            try:
                return await call()
            except LinkError as error:
                logger.warning("the cluster is not ready", extra={"reason": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)

    async def _prove(self) -> None:
        """Ask JetStream now and then: a gateway without messages would not notice a loss."""
        while True:
            await asyncio.sleep(_ASK_SECONDS)
            try:
                if await self._streams.has_leader(self._streams.state_stream):
                    self._proved_at = self._clock()
            except LinkError as error:
                logger.debug("JetStream does not answer", extra={"reason": str(error)})

    async def _open_tokens(self, tokens: "SharedTokens", *, with_key: bool) -> None:
        await self._persist(lambda: tokens.open(with_key=with_key))
        await tokens.follow()

    def _copy(self, pod: PodCore) -> LogCopy:
        return self._pods[token(pod.name)].archive.copy

    def _retain(self, copy: LogCopy) -> None:
        """Delete from a copy what the limits of the stream have deleted, about."""
        max_age = self._retention.max_age_days * _DAY_SECONDS
        since = self._clock() - max_age if max_age else None
        copy.retain(since=since, max_bytes=self._retention.max_bytes or None)

    async def _wait_for(self, is_done: Callable[[ClusterPod], bool]) -> None:
        deadline = self._clock() + _HAND_OVER_SECONDS
        waiting = [link.pod for link in self._pods.values() if link.is_open]
        while waiting and self._clock() < deadline and self._link.is_connected:
            waiting = [pod for pod in waiting if not is_done(pod)]
            await asyncio.sleep(_WAIT_SECONDS if waiting else 0)

    async def _open(self, link: PodLink) -> None:
        async with self._opening:  # creating hundreds of streams at once would take too long
            await link.open()
        now = self._clock()
        link.pod.replica.journal.admitting = self._has_servers(now) and self._reaches(link, now)

    def _has_servers(self, now: float) -> bool:
        """Return whether the servers can be reached and have a majority."""
        return self._link.is_connected and now - self._proved_at < PROOF_SECONDS

    def _reaches(self, link: PodLink, now: float) -> bool:
        """Return whether a pod's log answers, given that the servers do."""
        return link.is_open and link.pod.waiting_seconds(now) < _STALLED_SECONDS

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _perform_and_resume(self, effects: Iterable[Effect]) -> None:
        self._perform(effects)
        self._on_commit()

    def _step(self) -> None:
        self._timer = self._loop.call_later(_STEP_SECONDS, self._step)
        now = self._clock()
        late = now - self._stepped_at
        was_suspended = late > _SUSPENDED_SECONDS
        self._stepped_at = now
        if was_suspended:
            self._proved_at += late  # it could not ask
        self._silence.advance(now)
        if now >= self._next_beat:
            self._next_beat = now + _BEAT_SECONDS
            self._silence.forget(_FORGET_SECONDS)
            self._beat(now)
        if was_suspended:
            for link in self._pods.values():
                link.pod.delegation.hold(now + _HOLD_SECONDS)
        self._step_pods(now)
        if self._connected:
            self._report_reach(now)

    def _step_pods(self, now: float) -> None:
        """Let the pods do what is due: those in which something happens now, others in turn."""
        alive = {*self._silence.alive(self._options.suspect_seconds), self.gateway}
        has_servers = self._has_servers(now)
        has_changed, self._had_servers = has_servers != self._had_servers, has_servers
        self._turn = (self._turn + 1) % _TURNS
        for number, link in enumerate(self._pods.values()):
            is_turn = number % _TURNS == self._turn
            if is_turn or link.is_active or link.pod.replica.fence.leader not in alive:
                link.step(now)
            elif not has_changed:
                continue
            reaches = has_servers and self._reaches(link, now)
            link.pod.replica.journal.admitting = reaches

    def _report_reach(self, now: float) -> None:
        """Log which pods' logs have gone out of reach, and when all of them can be reached."""
        links = self._pods.values()
        lost = {
            each.pod.name
            for each in links
            if not each.pod.replica.journal.admitting and each.is_open
        }
        if not lost:
            if self._lost_pods:
                logger.info("the log can be reached again")
                self._lost_pods = set()
            self._lost_since = now
        elif now - self._lost_since >= _REPORT_SECONDS and not lost <= self._lost_pods:
            names = ", ".join(sorted(lost - self._lost_pods)[:_NAMED_PODS])
            logger.error("the log is out of reach", extra={"pods": len(lost), "such_as": names})
            self._lost_pods |= lost

    def _beat(self, now: float) -> None:
        said = {name: link.pod.beat() for name, link in self._pods.items()}
        leads = {name: each for name, each in said.items() if each is not None}
        sessions = sum(link.pod.session_count for link in self._pods.values())
        lag = sum(link.lag for link in self._pods.values())
        outdated = any(link.pod.outdated for link in self._pods.values())
        about = (self.address, sessions, lag, self.is_reachable, outdated)
        beat = Beat(self.gateway, leads, self.stopping, *about)
        self._link.send(f"{self._link.prefix}.beat", encode(beat))

    def _receive_record(self, message: NatsMessage) -> None:
        link = self._pods.get(message.subject.split(".")[1])
        if link is not None:
            self._proved_at = self._clock()
            link.receive_record(message)

    def _receive_forward(self, message: NatsMessage) -> None:
        pod, forward = message.subject.split(".")[1], decode_forward(message.data)
        link = self._pods.get(pod)
        if link is not None:
            link.receive_forward(forward)
        else:  # chosen as a successor, but this pod is not configured here: as if it were away
            gateway = forward.origin.rpartition("/")[0]
            reply = f"{self._link.prefix}.reply.{gateway}.forward.{pod}.{self.gateway}"
            self._link.send(reply, b"")

    def _receive_live(self, message: NatsMessage) -> None:
        link = self._pods.get(message.subject.split(".")[1])
        if link is None:
            return
        try:
            parts = decode_live(message.data)
        except msgspec.DecodeError:
            return
        if parts.gateway != self.gateway:
            link.receive_live(parts)

    def _receive_ack(self, message: NatsMessage) -> None:
        link = self._pods.get(message.subject.rpartition(".")[2])
        if link is not None:
            link.receive_ack(message)

    def _receive_no_responders(self, message: NatsMessage) -> None:
        *_, pod, gateway = message.subject.split(".")
        link = self._pods.get(pod)
        if link is not None:
            link.lose(gateway)

    def _receive_beat(self, message: NatsMessage) -> None:
        try:
            beat = decode_beat(message.data)
        except msgspec.DecodeError:
            return
        if beat.gateway == self.gateway:
            return
        if beat.stopping:
            self._silence.end(beat.gateway)
        else:
            self._silence.hear(beat.gateway, may_lead=not beat.outdated)
        for name, said in beat.leads.items():
            if name in self._pods:
                self._pods[name].receive_beat(beat.gateway, said)
        for name, link in self._pods.items():
            if link.pod.replica.fence.leader == beat.gateway and name not in beat.leads:
                link.receive_beat(beat.gateway, None)


def new_link(section: ClusterSection, name: str) -> NatsLink:
    """Return a connection to the configured servers, not opened yet. Raises ConfigError."""
    return NatsLink(
        section.servers,
        prefix=section.name,
        gateway=name,
        credentials=section.credentials,
        tls=_tls(section),
    )


@asynccontextmanager
async def command_streams(config: Config, name: str) -> AsyncIterator[Streams]:
    """Connect a command to the configured servers while the block runs. Raises McppError."""
    logger.addHandler(logging.NullHandler())  # each attempt would print a line without its reason
    section = config.cluster
    link = new_link(section, f"{name}{os.getpid()}")
    try:
        try:
            await asyncio.wait_for(link.connect(), _COMMAND_SECONDS)
        except LinkError as error:
            raise ConfigError(str(error)) from None
        except TimeoutError:
            raise LinkError(f"no NATS server answers at {section.shown_servers}") from None
        yield Streams(link, section.replicas, config.log.retention)
    finally:
        await link.close()


def _tls(section: ClusterSection) -> ssl.SSLContext | None:
    if section.tls_ca is None and not any(each.startswith("tls:") for each in section.servers):
        return None
    try:
        context = ssl.create_default_context(cafile=section.tls_ca)
        if section.tls_cert is not None:
            context.load_cert_chain(section.tls_cert, section.tls_key)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cluster.tls_ca: cannot load the certificates: {error}") from None
    return context
