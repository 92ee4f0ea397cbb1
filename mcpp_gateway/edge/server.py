"""The gateway server: listens on a port, runs timers, reloads its configuration, drains.

gateway = Gateway(config, loop)
await gateway.listen()
...
await gateway.drain()
"""

import asyncio
import errno
import logging
import os
import secrets
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import uuid6

from mcpp.errors import McppError
from mcpp_gateway.blobs.folder import FolderStore
from mcpp_gateway.blobs.service import BlobService
from mcpp_gateway.blobs.store import BlobStore, BlobStoreError
from mcpp_gateway.config import OWN_ISSUER, Config, ConfigError
from mcpp_gateway.core.effects import DRAINING, ReadHistory
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.edge.admission import Admission, AdmissionControl, Denial, Headers, Waiting
from mcpp_gateway.edge.admission.leases import Leases
from mcpp_gateway.edge.admission.sign_in import CODE_BYTES, Identity, SessionTokens
from mcpp_gateway.edge.connection import ServerConnection
from mcpp_gateway.edge.hub import Hub
from mcpp_gateway.edge.listener import Listener
from mcpp_gateway.edge.outboxes import Outboxes
from mcpp_gateway.edge.peer import Peer
from mcpp_gateway.edge.read_quota import ReadQuota
from mcpp_gateway.edge.session_log import log_session
from mcpp_gateway.edge.web.mcp_service import McpService
from mcpp_gateway.edge.web.requests import HttpRequest
from mcpp_gateway.prompts.service import PromptService
from mcpp_gateway.storage.log_store import LogStore
from mcpp_gateway.tokens.revocations import Kind, NotStoredError

if TYPE_CHECKING:
    from mcpp_gateway.cluster.blob_stream import Announcement
    from mcpp_gateway.cluster.cluster_log import ClusterLog
    from mcpp_gateway.tokens.service import TokenService

logger = logging.getLogger("mcpp.gateway")

_HOUSEKEEPING_SECONDS: Final = 1.0
_EXPIRY_SECONDS: Final = 0.05  # between the ticks of a pod in which many contexts expire together
_STOPPING: Final = Denial(
    503, "the gateway is shutting down; try again soon", retry_after_seconds=1
)
_NO_SPACE: Final = "the gateway has no space left on its disk"
_OUT_OF_REACH: Final = "the cluster's log is out of reach; try another gateway"
_EXIT_IO_ERROR: Final = 74  # EX_IOERR of sysexits.h
# A round trip to the cluster's log takes longer than a sync, so that more may wait for it.
_CLUSTER_SHARE: Final = 4
_CLUSTER_COMMIT_SECONDS: Final = 2.0
_KEYS_SECONDS: Final = 6.0  # that a request waits for an issuer's keys
_HAND_OVER_SECONDS: Final = 0.5  # that clients have to close, while the next process waits
_TICK_BYTES: Final = 262_144  # read in one tick, over all connections


def steady_clock(at_least: float = 0.0) -> Callable[[], float]:
    """Return a clock of Unix time that does not jump when the system's clock is changed.

    It begins with the present time, or with `at_least` if that is later.
    """
    offset = max(time.time(), at_least) - time.monotonic()
    monotonic = time.monotonic
    return lambda: offset + monotonic()


class RevocationOutcome(NamedTuple):
    """How many connections a revocation has closed here, and whether such a token is known.

    If it could not be stored, so that a restart forgets it, `not_stored` says why.
    """

    closed: int
    was_known: bool
    not_stored: str = ""


class Gateway:
    """The pods of one process on one port. Owns connections, timers and the hub."""

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, session_key: bytes | None = None
    ) -> None:
        self.config = config
        self.loop = loop
        clock = steady_clock()
        smallest = min(config.limits_of(pod).outbox_bytes for pod in config.pods or ("",))
        tick_bytes = min(_TICK_BYTES, smallest // 4)
        self.quota = ReadQuota(
            loop, clock, tick_bytes=tick_bytes, unwritten_bytes=self._unwritten_bytes
        )
        self.hub = Hub(loop, clock, self.quota)
        self.hub.read_history = self._read_history
        self.prompts = PromptService(lambda: self.logs or self.cluster)
        self.hub.on_much_written = self._check_outboxes
        self.connections: set[ServerConnection] = set()
        self.draining = False
        self.started = clock()
        # Of signed tokens, whose times other machines have set: the steady clock stops while this
        # one is suspended.
        self.wall_clock: Callable[[], float] = time.time
        self.on_drain_request: Callable[[], None] = lambda: None
        self.logs = self._open_logs()
        self.cluster = self._open_cluster()
        self.blobs = BlobService(self._open_blobs(), lambda: self.hub.clock())
        self.tokens: TokenService | None = None
        self.tokens = self._open_tokens(config)
        self.pods = {name: self._new_pod(name, config) for name in config.pods}
        self._advance_clock()
        self.admission: AdmissionControl
        self.mcp: McpService | None = None
        self.port: int
        self._session_key = session_key or secrets.token_bytes(32)
        self._sessions = SessionTokens(self._session_key)
        self._listener = Listener(loop)
        self._timer: asyncio.TimerHandle | None = None
        self._ping_round = 0
        self._outboxes = Outboxes(loop)
        self._expiring: set[PodCore] = set()  # those with more expired contexts than one tick holds
        self.leases = Leases(
            loop,
            lambda: self.hub.clock(),
            lambda: self.wall_clock(),
            lambda identity: self.pods[identity[0]].members.granted(identity[1]),
        )
        self._drained = asyncio.Event()
        self._committed = asyncio.Event()

    async def listen(
        self,
        inherited: Sequence[socket.socket] = (),
        certificate: ssl.SSLContext | None = None,
    ) -> None:
        """Open the port, or take over inherited sockets. Raises ConfigError if it cannot.

        `certificate` is the configuration's, if it was read before.
        """
        try:
            if self.cluster is not None:
                await self.cluster.connect()
                key = await self.cluster.shared_key(self._session_key)
                self._sessions = SessionTokens(key)
            for pod in self.pods.values():
                await self.blobs.load(pod)
            await self._listen(inherited, certificate)
        except BlobStoreError as error:
            await self._close_logs()
            raise ConfigError(f"log.path: the blobs cannot be read: {error}") from None
        except (ConfigError, asyncio.CancelledError):
            await self._listener.close()
            await self._close_logs()
            raise

    async def _listen(
        self, inherited: Sequence[socket.socket], certificate: ssl.SSLContext | None
    ) -> None:
        new_connection = partial(ServerConnection, self)
        await self._listener.open(self.config, new_connection, inherited, certificate)
        self.port = self._listener.port
        if self.cluster is not None:
            self.cluster.address = f"{self.config.gateway.host}:{self.port}"
        self.admission = AdmissionControl(
            self.config, self.port, self._sessions, self.tokens, self.pods
        )
        if self.config.gateway.mcp:
            self.mcp = McpService(await self._listener.local_url(), self.config.gateway.log_format)
        self._timer = self.loop.call_later(_HOUSEKEEPING_SECONDS, self._run_housekeeping)

    def admit(
        self, query: str, headers: Headers, address: str
    ) -> "Admission | Denial | asyncio.Task[Admission | Denial]":
        """Decide on a request to join; a task if the keys of its token's issuer are being read."""
        if self.draining:
            return _STOPPING
        decision = self.admission.admit(query, headers, address, self.hub.clock())
        if isinstance(decision, Waiting):
            return self.loop.create_task(self._admit_later(query, headers, address, decision))
        return self._check_pod(decision) if isinstance(decision, Admission) else decision

    async def _admit_later(
        self, query: str, headers: Headers, address: str, waiting: Waiting
    ) -> Admission | Denial:
        await asyncio.wait([waiting.refresh], timeout=_KEYS_SECONDS)
        if self.draining:
            return _STOPPING
        decision = self.admission.admit(query, headers, address, self.hub.clock(), waiting)
        assert not isinstance(decision, Waiting), "keys are not read twice for one request"
        return self._check_pod(decision) if isinstance(decision, Admission) else decision

    def recognise(self, request: HttpRequest, *, has_joined: bool = False) -> Identity | Denial:
        """Return the pod and the participant of a request that does not join.

        With `has_joined`, the owner of a signed token has to have joined with its rights (S-01).
        """
        if self.draining:
            return _STOPPING
        return self.admission.recognise(
            request.headers, request.address, self.hub.clock(), request.pod, has_joined=has_joined
        )

    def _check_pod(self, admission: Admission) -> Admission | Denial:
        """Return the admission, or why the pod has no room for it."""
        now = self.hub.clock()
        pod, participant = self.pods[admission.pod], admission.participant
        if not pod.can_join(participant):
            reason = _NO_SPACE if self.cluster is None else _OUT_OF_REACH
            return Denial(503, reason, retry_after_seconds=5)
        refusal = pod.members.join_refusal(participant, admission.filter)
        if refusal is not None:
            return Denial(429, refusal, retry_after_seconds=5)
        debt = self.quota.join_wait(pod.members.bucket(participant))
        wait = max(debt, pod.members.join_wait(participant, now))
        if wait:
            reason = f"too many joins; try again in {wait:.1f} s"
            return Denial(429, reason, retry_after_seconds=wait)
        return admission

    async def invite(self, pod: str, participant: str) -> str:
        """Return a code that signs a browser in as this participant, once, for two minutes.

        Raises McppError if the cluster cannot be reached.
        """
        code = secrets.token_urlsafe(CODE_BYTES)
        if self.cluster is None:
            self.admission.invitations.add(code, (pod, participant), self.hub.clock())
        else:
            await self.cluster.secrets.add_code(code, (pod, participant))
        return code

    async def fetch_invitation(self, code: str) -> None:
        """Take a code that any gateway of the cluster has issued, if it exists. Raises McppError.

        No other gateway accepts it from here on.
        """
        assert self.cluster is not None
        identity = await self.cluster.secrets.redeem_code(code)
        if identity is not None:
            self.admission.invitations.add(code, identity, self.hub.clock())

    def join(self, connection: ServerConnection, admission: Admission) -> Peer:
        """Join an admitted connection to its pod."""
        self.leases.add(connection, admission)
        pod, grant = self.pods[admission.pod], admission.grant
        if grant is not None:
            self.hub.perform_all(pod.admit(grant, self.hub.clock()))
        connection.peer = self.hub.join(
            pod,
            admission.participant,
            connection,
            filter=admission.filter,
            after=admission.after,
            last=admission.last,
        )
        log_session("joined", connection, **({} if grant is None else {"issuer": grant.issuer}))
        return connection.peer

    def reconfigure(self, config: Config) -> None:
        """Apply the participants and tokens of a new configuration; the rest needs a restart."""
        config = without_restart(self.config, config)
        # First, because they may fail, and then nothing has changed.
        if self.cluster is not None:
            self.cluster.check_message_size(config.largest_message_bytes)
        certificate = self._listener.next_certificate(config)
        tokens = self._open_tokens(config)
        for name in config.pods.keys() - self.pods.keys():
            self.pods[name] = self._new_pod(name, config)
            self.blobs.run(self.blobs.load(self.pods[name]))
        self._listener.use_certificate(certificate)
        self._advance_clock()
        now = self.hub.clock()
        kept = {identity: secret for secret, identity in config.tokens.items()}
        for secret, (pod, participant) in self.config.tokens.items():
            if kept.get((pod, participant)) != secret:
                self.hub.perform_all(self.pods[pod].revoke(participant, now))
        for name, changed in self.pods.items():
            self.hub.perform_all(changed.reconfigure(config.pods.get(name, ()), now))
            self.hub.announce_later(changed)
            changed.issuers = config.issuer_names
            if changed.limits != config.limits_of(name):
                changed.change_limits(config.limits_of(name), now)
        for connection in self.connections:
            connection.limit_messages()
        self._change_issuers(config, tokens)
        for connection in self.leases.leave_pods(config.pods):
            log_session("revoked", connection, reason="pod removed")
        self.config = config
        self.admission.reconfigure(config)

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The listening sockets, for a process that takes over."""
        return self._listener.sockets

    @property
    def certificate(self) -> ssl.SSLContext | None:
        """What the port serves new connections with; None without TLS."""
        return self._listener.certificate

    def prepare_stop(self) -> None:
        """Make the next start short: it reads the logs before clients can resume."""
        if self.logs is not None:
            self.logs.prepare_stop()

    async def drain(self, *, handing_over: bool = False) -> None:
        """Refuse new connections, flush, close all connections, and close the port (G-42).

        When handing over, new connections are left to the next process instead.
        """
        self.draining = True
        if handing_over:
            await self._listener.close()
        if self._timer is not None:
            self._timer.cancel()
        for pod in self.pods.values():
            pod.stopping = True
        await self._commit_logs()
        self.prepare_stop()
        if self.cluster is not None:
            await self.cluster.hand_over()
        self.hub.flush()
        self._drained.clear()
        for connection in list(self.connections):
            if connection.peer is not None:
                connection.close(DRAINING, "the gateway is shutting down; reconnect")
        if self._joined():
            with suppress(TimeoutError):
                seconds = self.config.gateway.drain_seconds
                if handing_over:
                    seconds = min(seconds, _HAND_OVER_SECONDS)
                async with asyncio.timeout(seconds):
                    await self._drained.wait()
        # The port stays open until here, so that new requests are answered with 503.
        await self._listener.close()
        if self.mcp is not None:
            await self.mcp.close()
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)  # so that uploads know that their clients are gone
        if self.cluster is not None:
            await self.cluster.say_goodbye()
        await self._close_logs()

    @property
    def is_log_reachable(self) -> bool:
        """Whether the cluster's log can be reached (G-53)."""
        return self.cluster is None or self.cluster.is_reachable

    @property
    def has_space(self) -> bool:
        """Whether the logs have room for participants' envelopes."""
        return self.logs is None or self.logs.accepting

    def forget(self, connection: ServerConnection) -> None:
        """Remove a connection that is closed."""
        self.connections.discard(connection)
        if connection.peer is not None:
            log_session("left", connection, **connection.ending())
        self.quota.forget(connection)
        self.leases.forget(connection)
        if self.draining and not self._joined():
            self._drained.set()

    def outbox_bytes(self) -> int:
        """Return the number of unsent bytes, over all connections."""
        return sum(connection.waiting_bytes for connection in self.connections)

    # --- private --------------------------------------------------------------------------------

    def _open_blobs(self) -> BlobStore:
        """Return where blobs are kept: beside the logs, in a temporary folder without any."""
        if self.cluster is not None:
            self.cluster.blobs.on_upload = self._learn_upload
            return self.cluster.blobs
        return FolderStore(Path(self.config.log.path) if self.config.log.kind == "file" else None)

    def _learn_upload(self, pod: str, upload: "Announcement") -> None:
        """Take note of an upload at any gateway of the cluster."""
        if pod in self.pods:
            table = self.pods[pod].blobs
            table.add(upload.participant, upload.hash, upload.size, upload.time)

    async def _close_logs(self) -> None:
        await self.blobs.close()
        if self.logs is not None:
            self.logs.close()
        if self.cluster is not None:
            await self.cluster.close()

    def _joined(self) -> bool:
        return any(connection.peer is not None for connection in self.connections)

    def _new_pod(self, name: str, config: Config) -> PodCore:
        settings, limits = config.pods[name], config.limits_of(name)
        issuers = config.issuer_names
        if self.logs is not None:
            return self.logs.open_pod(name, settings, limits, issuers=issuers)
        if self.cluster is not None:
            pod: PodCore = self.cluster.open_pod(name, settings, limits)
        else:
            pod = PodCore(name, settings, limits, new_id=lambda: str(uuid6.uuid7()))
        pod.issuers = issuers
        return pod

    def _open_logs(self) -> LogStore | None:
        if self.config.log.kind != "file":
            return None
        return LogStore(
            self.config.log,
            loop=self.loop,
            clock=lambda: self.hub.clock(),
            perform=self.hub.perform_all,
            on_commit=self._on_commit,
            on_failure=_end_process,
        )

    def _read_history(self, request: ReadHistory) -> None:
        peer: Peer = request.session.peer
        if peer.pod.history.is_in_memory:
            self.hub.pages.add(request)
            return
        logs = self.logs or self.cluster
        assert logs is not None
        logs.read_history(peer.pod, request)

    def _open_cluster(self) -> "ClusterLog | None":
        if self.config.log.kind != "jetstream":
            return None
        try:
            from mcpp_gateway.cluster.cluster_log import ClusterLog
        except ModuleNotFoundError:
            reason = "jetstream needs nats-py: pip install 'mcpp-pods[cluster]'"
            raise ConfigError(f"log.kind: {reason}") from None
        return ClusterLog(
            self.config,
            loop=self.loop,
            clock=lambda: self.hub.clock(),
            perform=self.hub.perform_all,
            on_commit=self._on_commit,
            on_failure=_end_process,
        )

    def _change_issuers(self, config: Config, tokens: "TokenService | None") -> None:
        """Close the connections of issuers that are gone, or may grant something else now."""
        if tokens is not None and self.tokens is not None:
            tokens.add(self.tokens.revocations)
        self.tokens = self.admission.tokens = tokens
        if tokens is not None:
            self._close_revoked()  # a folder that is new here may hold revocations
        now = {each.name: each for each in config.issuers}
        before = {each.name: each for each in self.config.issuers}
        gone = before.keys() - now.keys()
        if not config.has_own_tokens:
            gone |= {OWN_ISSUER}
        for connection in self.leases.revoke(lambda grant: grant.issuer in gone):
            log_session("revoked", connection, reason="issuer removed")
        changed = {name for name in before.keys() & now.keys() if before[name] != now[name]}
        self.leases.end(lambda grant: grant.issuer in changed)

    def _open_tokens(self, config: Config) -> "TokenService | None":
        if not config.admits_signed:
            return None
        if self.tokens is not None and self.config.token_sources == config.token_sources:
            self.tokens.reread(config)
            return self.tokens
        try:
            from mcpp_gateway.tokens.service import TokenService
        except ModuleNotFoundError:
            reason = "signed tokens need PyJWT: pip install 'mcpp-pods[gateway]'"
            raise ConfigError(f"issuers: {reason}") from None
        shared = None
        if self.cluster is not None and config.token_folder is None:
            shared = self.cluster.share_tokens(
                with_key=config.shares_tokens, on_change=self._learn_tokens
            )
        return TokenService(
            config,
            self.loop,
            lambda: self.hub.clock(),
            lambda: self.wall_clock(),
            shared=shared,
            before=self.tokens,
        )

    async def revoke(self, name: str) -> RevocationOutcome:
        """Revoke a signed token by its id, or all of a participant (S-10).

        Raises UnknownNameError if no such token can exist, and another McppError if the cluster
        cannot be reached: then nothing is revoked.
        """
        if self.tokens is None:
            raise ConfigError("no signed tokens are configured")
        joined: set[Kind] = set().union(
            *(pod.members.joined_kinds(name) for pod in self.pods.values())
        )
        if self.leases.has_token(name):
            joined.add("token")
        may_be_unknown = bool(self.config.issuers)
        shared = None if self.cluster is None else self.cluster.tokens
        if shared is None or self.config.token_folder is not None:
            revoked = self.tokens.revoke(name, may_be_unknown=may_be_unknown, joined=joined)
            is_known = revoked.was_issued or bool(joined)
            closed = self._close_revoked()  # first: the disk may be full
            return RevocationOutcome(closed, is_known, self._store_revocations())
        now = self.wall_clock()
        revoked = await shared.revoke(name, now, may_be_unknown=may_be_unknown, joined=joined)
        self.tokens.add(revoked.revocations)
        return RevocationOutcome(self._close_revoked(), revoked.was_issued or bool(joined))

    def _store_revocations(self) -> str:
        """Store what was revoked. Return why that was not possible, or an empty text."""
        assert self.tokens is not None
        try:
            self.tokens.store()
        except NotStoredError as error:
            logger.error("revocations cannot be stored", extra={"reason": str(error)})  # noqa: TRY400
            return str(error)
        return ""

    def _learn_tokens(self) -> None:
        """Apply what was signed or revoked elsewhere."""
        if self.tokens is not None and self.tokens.learn():
            self._close_revoked()

    def _close_revoked(self) -> int:
        assert self.tokens is not None
        closed = self.leases.revoke(self.tokens.revocations.covers)
        for connection in closed:
            log_session("revoked", connection)
        return len(closed)

    def _end_withdrawn(self) -> None:
        """Close the connections whose token's key is gone (S-14)."""
        assert self.tokens is not None
        for connection in self.leases.end_withdrawn(self.tokens.has_withdrawn_key):
            log_session("key withdrawn", connection)

    def _advance_clock(self) -> None:
        """Keep times from going back behind what the logs hold, if the system's clock was set."""
        if self.logs is not None and self.logs.time > self.hub.clock():
            self.hub.clock = self.quota.budget.clock = steady_clock(self.logs.time)

    def _unwritten_bytes(self) -> int:
        if self.cluster is not None:
            return self.cluster.waiting_bytes // _CLUSTER_SHARE
        return 0 if self.logs is None else self.logs.unwritten_bytes

    def _on_commit(self) -> None:
        self.quota.resume_turns()
        if not self._unwritten_bytes():
            self._committed.set()

    async def _commit_logs(self) -> None:
        """Read no more, and wait until everything accepted is committed and was sent on."""
        for connection in self.connections:
            connection.pause_reading()
        with suppress(TimeoutError):  # a file is written in any case, a cluster may be out of reach
            async with asyncio.timeout(None if self.cluster is None else _CLUSTER_COMMIT_SECONDS):
                while self._unwritten_bytes():
                    self._committed.clear()
                    await self._committed.wait()

    def _tick(self, pod: PodCore) -> None:
        self.hub.perform_all(pod.tick(self.hub.clock()))
        if pod.has_expiries and pod not in self._expiring:
            self._expiring.add(pod)
            self.loop.call_later(_EXPIRY_SECONDS, self._expire_more, pod)

    def _expire_more(self, pod: PodCore) -> None:
        self._expiring.discard(pod)
        if not self.draining:
            self._tick(pod)

    def _check_descriptors(self) -> None:
        """Log that no connection can be accepted; uvloop does not say so."""
        try:
            os.close(os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                facts = {"connections": len(self.connections)}
                logger.critical("no file descriptors left: new connections wait", extra=facts)

    def _check_outboxes(self) -> None:
        self._outboxes.check(self.connections, self.config)

    def _run_housekeeping(self) -> None:
        self._timer = self.loop.call_later(_HOUSEKEEPING_SECONDS, self._run_housekeeping)
        for pod in self.pods.values():
            self._tick(pod)
            pod.forget_owners(self.wall_clock())
            self.blobs.check(pod)
        if self.logs is not None:
            self.logs.check()
        if self.cluster is not None:
            self.hub.perform_all(self.cluster.close_stalled(self.hub.clock()))
        if self.tokens is not None:
            self.tokens.renew_keys()
            self._learn_tokens()
            self._end_withdrawn()
            self.leases.check()
        self._check_descriptors()
        self._check_outboxes()
        self.quota.start_second()
        # A part of the connections each second, so that thousands of pings are not sent at once.
        rounds = max(1, round(self.config.gateway.ping_seconds / _HOUSEKEEPING_SECONDS))
        self._ping_round = (self._ping_round + 1) % rounds
        for connection in list(self.connections):
            if id(connection) // 64 % rounds == self._ping_round:
                connection.ping()


def _end_process(error: BaseException) -> None:
    """End the process at once after a write to a log failed: nothing may be sent any more (G-54).

    A write or sync that failed is not tried again: the kernel may have dropped the data. The same
    if a cluster's log has lost what was applied here (N-14).
    """
    known = isinstance(error, OSError | McppError)
    logger.critical("cannot write the log, exiting: %s", error, exc_info=None if known else error)
    for handler in logging.getLogger("mcpp").handlers:
        handler.flush()
    os._exit(_EXIT_IO_ERROR)


def without_restart(old: Config, new: Config) -> Config:
    """Return the new configuration with the old values of what cannot change at run time."""
    kept = {name: getattr(old.gateway, name) for name in ("host", "port", "log_format")}
    gateway = msgspec.structs.replace(new.gateway, **kept)
    return msgspec.structs.replace(new, log=old.log, cluster=old.cluster, gateway=gateway)
