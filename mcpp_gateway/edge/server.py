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
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec
import uuid6

from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.core.effects import DRAINING, SESSION_EXPIRED
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.edge.admission import Admission, AdmissionControl, Denial, Headers
from mcpp_gateway.edge.connection import ServerConnection
from mcpp_gateway.edge.hub import Hub
from mcpp_gateway.edge.peer import Peer
from mcpp_gateway.edge.read_quota import ReadQuota
from mcpp_gateway.edge.sign_in import CODE_BYTES, SessionTokens
from mcpp_gateway.storage.log_store import LogStore

logger = logging.getLogger("mcpp.gateway")

# Large enough for a thousand participants that reconnect at once.
_BACKLOG: Final = 4096
# asyncio uses its `backlog` as the number of connections to accept at a time, and logs an error for
# each of them when the process has no file descriptors left.
_ACCEPTED_AT_ONCE: Final = 16
_HOUSEKEEPING_SECONDS: Final = 1.0
_NO_SPACE: Final = "the gateway has no space left on its disk"
_EXIT_IO_ERROR: Final = 74  # EX_IOERR of sysexits.h
_TICK_BYTES: Final = 262_144  # read in one tick, over all connections


def steady_clock(at_least: float = 0.0) -> Callable[[], float]:
    """Return a clock of Unix time that does not jump when the system's clock is changed.

    It begins with the present time, or with `at_least` if that is later.
    """
    offset = max(time.time(), at_least) - time.monotonic()
    monotonic = time.monotonic
    return lambda: offset + monotonic()


class Gateway:
    """The pods of one process on one port. Owns connections, timers and the hub."""

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, session_key: bytes | None = None
    ) -> None:
        self.config = config
        self.loop = loop
        clock = steady_clock()
        tick_bytes = min(_TICK_BYTES, config.limits.outbox_bytes // 4)
        self.quota = ReadQuota(
            loop, clock, tick_bytes=tick_bytes, unwritten_bytes=self._unwritten_bytes
        )
        self.hub = Hub(loop, clock, self.quota)
        self.connections: set[ServerConnection] = set()
        self.draining = False
        self.logs = self._open_logs()
        self.pods = {name: self._new_pod(name, config) for name in config.pods}
        self._advance_clock()
        self.admission: AdmissionControl
        self.port: int
        self._sessions = SessionTokens(session_key or secrets.token_bytes(32))
        self._server: asyncio.Server
        self._timer: asyncio.TimerHandle | None = None
        self._ping_round = 0
        self._expiries: dict[ServerConnection, asyncio.TimerHandle] = {}
        self._drained = asyncio.Event()
        self._committed = asyncio.Event()

    async def listen(self) -> None:
        """Open the port. Raises ConfigError if that is not possible."""
        try:
            await self._listen()
        except ConfigError:
            if self.logs is not None:
                self.logs.close()
            raise

    async def _listen(self) -> None:
        section = self.config.gateway
        tls = _tls(self.config)
        try:
            self._server = await self.loop.create_server(
                lambda: ServerConnection(self),
                section.host,
                section.port,
                ssl=tls,
                # Half for TLS and half for the upgrade: `handshake_seconds` in all.
                ssl_handshake_timeout=section.handshake_seconds / 2 if tls else None,
                backlog=_ACCEPTED_AT_ONCE,
                reuse_address=True,
            )
        except OSError as error:
            raise ConfigError(_explain(error, section.host, section.port)) from None
        except ValueError:  # UnicodeError is one
            raise ConfigError("gateway.host: not a valid host name") from None
        for each in self._server.sockets:
            with socket.socket(fileno=os.dup(each.fileno())) as same:
                same.listen(_BACKLOG)
        self.port = self._server.sockets[0].getsockname()[1]
        self.admission = AdmissionControl(self.config, self.port, self._sessions)
        self._timer = self.loop.call_later(_HOUSEKEEPING_SECONDS, self._run_housekeeping)

    def admit(self, query: str, headers: Headers, address: str) -> Admission | Denial:
        """Decide on a request to join."""
        if self.draining:
            reason = "the gateway is shutting down; try again soon"
            return Denial(503, reason, retry_after_seconds=1)
        now = self.hub.clock()
        decision = self.admission.admit(query, headers, address, now)
        if isinstance(decision, Admission):
            pod = self.pods[decision.pod]
            if not pod.can_join(decision.participant):
                return Denial(503, _NO_SPACE, retry_after_seconds=5)
            wait = pod.join_wait(decision.participant, now)
            if wait:
                reason = f"too many joins; try again in {wait:.1f} s"
                return Denial(429, reason, retry_after_seconds=wait)
        return decision

    def invite(self, pod: str, participant: str) -> str:
        """Return a code that signs a browser in as this participant, once, for two minutes."""
        code = secrets.token_urlsafe(CODE_BYTES)
        self.admission.invitations.add(code, (pod, participant), self.hub.clock())
        return code

    def join(self, connection: ServerConnection, admission: Admission) -> Peer:
        """Join an admitted connection to its pod."""
        logger.info("joined", extra={"pod": admission.pod, "participant": admission.participant})
        if admission.until is not None:
            self._expiries[connection] = self.loop.call_later(
                admission.until - self.hub.clock(),
                connection.close,
                SESSION_EXPIRED,
                "the session has expired",
            )
        return self.hub.join(
            self.pods[admission.pod],
            admission.participant,
            connection,
            filter=admission.filter,
            after=admission.after,
            last=admission.last,
        )

    def reconfigure(self, config: Config) -> None:
        """Apply the participants and tokens of a new configuration; the rest needs a restart."""
        config = without_restart(self.config, config)
        # First, because it may fail, and then nothing has changed.
        for name in config.pods.keys() - self.pods.keys():
            self.pods[name] = self._new_pod(name, config)
        self._advance_clock()
        now = self.hub.clock()
        kept = {identity: secret for secret, identity in config.tokens.items()}
        for secret, (pod, participant) in self.config.tokens.items():
            if kept.get((pod, participant)) != secret:
                self.hub.perform_all(self.pods[pod].revoke(participant, now))
        for name in config.pods.keys() | self.pods.keys():
            self.hub.perform_all(self.pods[name].reconfigure(config.pods.get(name, ()), now))
        self.config = config
        self.admission.reconfigure(config)

    async def drain(self) -> None:
        """Refuse new connections, flush, close all connections, and close the port (G-42)."""
        self.draining = True
        if self._timer is not None:
            self._timer.cancel()
        for pod in self.pods.values():
            pod.stopping = True
        await self._commit_logs()
        self.hub.flush()
        self._drained.clear()
        for connection in list(self.connections):
            if connection.peer is not None:
                connection.close(DRAINING, "the gateway is shutting down; reconnect")
        if self._joined():
            with suppress(TimeoutError):
                async with asyncio.timeout(self.config.gateway.drain_seconds):
                    await self._drained.wait()
        # The port stays open until here, so that new requests are answered with 503.
        await self._stop_listening()
        for connection in list(self.connections):
            connection.abort()
        if self.logs is not None:
            self.logs.close()

    @property
    def has_space(self) -> bool:
        """Whether the logs have room for participants' envelopes."""
        return self.logs is None or self.logs.accepting

    def forget(self, connection: ServerConnection) -> None:
        """Remove a connection that is closed."""
        self.connections.discard(connection)
        self.quota.forget(connection)
        if connection in self._expiries:
            self._expiries.pop(connection).cancel()
        if self.draining and not self._joined():
            self._drained.set()

    def outbox_bytes(self) -> int:
        """Return the number of unsent bytes, over all connections."""
        return sum(connection.waiting_bytes for connection in self.connections)

    # --- private --------------------------------------------------------------------------------

    async def _stop_listening(self) -> None:
        if isinstance(self.loop, asyncio.SelectorEventLoop):
            # Closing an asyncio server leaves connections that were accepted in this tick open and
            # unanswered (gh-109564), so they are handed over first.
            for each in self._server.sockets:
                self.loop.remove_reader(each)
            await asyncio.sleep(0)
        self._server.close()

    def _joined(self) -> bool:
        return any(connection.peer is not None for connection in self.connections)

    def _new_pod(self, name: str, config: Config) -> PodCore:
        settings = config.pods[name]
        if self.logs is not None:
            return self.logs.open_pod(name, settings, config.limits)
        return PodCore(name, settings, config.limits, new_id=lambda: str(uuid6.uuid7()))

    def _open_logs(self) -> LogStore | None:
        if self.config.log.kind == "memory":
            return None
        return LogStore(
            self.config.log,
            loop=self.loop,
            clock=lambda: self.hub.clock(),
            perform=self.hub.perform_all,
            on_commit=self._on_commit,
            on_failure=_end_process,
        )

    def _advance_clock(self) -> None:
        """Keep times from going back behind what the logs hold, if the system's clock was set."""
        if self.logs is not None and self.logs.time > self.hub.clock():
            self.hub.clock = self.quota.clock = steady_clock(self.logs.time)

    def _unwritten_bytes(self) -> int:
        return 0 if self.logs is None else self.logs.unwritten_bytes

    def _on_commit(self) -> None:
        self.quota.resume_turns()
        if not self._unwritten_bytes():
            self._committed.set()

    async def _commit_logs(self) -> None:
        """Read no more, and wait until everything accepted is committed and was sent on."""
        for connection in self.connections:
            connection.pause_reading()
        while self._unwritten_bytes():
            self._committed.clear()
            await self._committed.wait()

    def _run_housekeeping(self) -> None:
        self._timer = self.loop.call_later(_HOUSEKEEPING_SECONDS, self._run_housekeeping)
        now = self.hub.clock()
        for pod in self.pods.values():
            self.hub.perform_all(pod.tick(now))
        if self.logs is not None:
            self.logs.check()
        self.quota.start_second()
        # A part of the connections each second, so that thousands of pings are not sent at once.
        rounds = max(1, round(self.config.gateway.ping_seconds / _HOUSEKEEPING_SECONDS))
        self._ping_round = (self._ping_round + 1) % rounds
        for connection in list(self.connections):
            if id(connection) // 64 % rounds == self._ping_round:
                connection.ping()


def _end_process(error: BaseException) -> None:
    """End the process at once after a write to a log failed: nothing may be sent any more (G-54).

    A write or sync that failed is not tried again: the kernel may have dropped the data.
    """
    known = isinstance(error, OSError)
    logger.critical("cannot write the log, exiting: %s", error, exc_info=None if known else error)
    os._exit(_EXIT_IO_ERROR)


def without_restart(old: Config, new: Config) -> Config:
    """Return the new configuration with the old values of what cannot change at run time."""
    kept = {
        name: getattr(old.gateway, name)
        for name in ("host", "port", "tls_cert", "tls_key", "log_format")
    }
    gateway = msgspec.structs.replace(new.gateway, **kept)
    return msgspec.structs.replace(new, limits=old.limits, log=old.log, gateway=gateway)


def _tls(config: Config) -> ssl.SSLContext | None:
    cert, key = config.gateway.tls_cert, config.gateway.tls_key
    if cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ValueError) as error:
        reason = f"cannot load {cert!r} with {key!r}: {error}"
        raise ConfigError(f"gateway.tls_cert: {reason}") from None
    return context


def _explain(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"gateway.host: {host!r} is not a host name or address of this machine"
    if error.errno == errno.EADDRINUSE:
        return f"gateway.port: {port} is in use; stop the other process or choose another port"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
