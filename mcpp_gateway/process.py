"""Runs a gateway as a process: signals, the limit of open files, logging."""

import asyncio
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from mcpp.errors import McppError
from mcpp_gateway.config import Config
from mcpp_gateway.edge.listener import read_certificate
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.handover import (
    Successor,
    confirm_takeover,
    ends_with_others,
    has_kept_address,
    inherited_sockets,
    start_successor,
    wait_for_predecessor,
)

logger = logging.getLogger("mcpp.gateway")


async def serve(
    config: Config,
    reload: Callable[[], Config],
    started: Callable[[Gateway], Awaitable[None]],
    session_key: bytes | None = None,
    create: Callable[[Config, asyncio.AbstractEventLoop, bytes | None], Gateway] = Gateway,
    stopping: Callable[[], None] = lambda: None,
) -> None:
    """Run a gateway until SIGTERM, SIGINT or the end of its terminal; SIGHUP reloads.

    `started` is called once the port is open; `stopping`, in a thread, before it ends
    without a successor.
    """
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_loop_error)
    allow_many_connections()
    if config.log.kind == "file":
        # The thread that writes the log gets its turn sooner: 10 % more throughput.
        sys.setswitchinterval(0.0005)
    process = _Process(
        reload, lambda config: create(config, loop, session_key), inherited_sockets(), loop
    )
    process.survive_early_signals()
    certificate = read_files(config)  # while a process that this one replaces can still go on
    if wait_for_predecessor():
        config, certificate = _read_again(config, certificate, reload)
    await process.listen(config, certificate)
    process.handle_signals()
    confirm_takeover()
    process.report()
    gateway, section = process.gateway, process.gateway.config.gateway
    if await has_kept_address(gateway.sockets, section.host, section.port):
        facts = {"host": section.host, "port": section.port}
        logger.warning("still at the old address: a restart is needed for this one", extra=facts)
    await started(gateway)
    while await process.run(stopping):
        process.report()


class _Process:
    """A gateway in this process. Owns its sockets while another process takes them over."""

    def __init__(
        self,
        reload: Callable[[], Config],
        create: Callable[[Config], Gateway],
        sockets: Sequence[socket.socket],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.gateway: Gateway
        self._reload = reload
        self._create = create
        self._sockets = sockets
        self._loop = loop
        self._stop = asyncio.Event()
        self._upgrade: asyncio.Task[Successor | None] | None = None
        # Under nohup it should outlive its terminal.
        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        self._had_terminal = not is_ignored and _has_terminal()

    async def listen(self, config: Config, certificate: ssl.SSLContext | None) -> None:
        """Open the logs and the port."""
        gateway = self._create(config)
        await gateway.listen(self._sockets, certificate)
        gateway.on_drain_request = self._stop.set
        self.gateway = gateway  # until now, signals find the one before, which is draining

    def survive_early_signals(self) -> None:
        """Ignore SIGHUP and SIGUSR2 until the port is open: by default they end a process.

        The configuration is read again then.
        """
        self._loop.add_signal_handler(signal.SIGUSR2, lambda: None)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_early_hangup)

    def handle_signals(self) -> None:
        """Stop, reload and hand over on signals from now on."""
        for name in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(name, self._stop.set)
        self._loop.add_signal_handler(signal.SIGUSR2, self._on_upgrade)
        self._loop.add_signal_handler(signal.SIGHUP, self._on_hangup)

    def report(self) -> None:
        """Log that the gateway listens, and what is unsafe."""
        # Participants may have been added since the configuration was read, before SIGHUP was
        # handled.
        _apply(self.gateway, self._reload)
        config = self.gateway.config
        facts = {"host": config.gateway.host, "port": self.gateway.port, "pid": os.getpid()}
        logger.info("listening", extra=facts)
        for warning in config.warnings:
            logger.warning(warning)

    async def run(self, stopping: Callable[[], None]) -> bool:
        """Run until it is asked to stop, then stop in order.

        Return whether this process listens again: it does if the one that was to take over has
        ended without doing so.
        """
        await self._stop.wait()
        self._stop.clear()  # a signal from here on ends the wait for the next process
        gateway, successor = self.gateway, self._successor()
        certificate = gateway.certificate
        if successor is not None:
            # uvloop's sockets have no dup().
            copies = [os.dup(each.fileno()) for each in gateway.sockets]
            self._sockets = [socket.socket(fileno=number) for number in copies]
            if gateway.config.log.kind == "memory":
                logger.warning("the log is in memory: what it holds is lost with this process")
        else:  # one that takes over may yet fail to
            await asyncio.to_thread(stopping)
        logger.info("draining", extra={"connections": len(gateway.connections)})
        await gateway.drain(handing_over=successor is not None)
        if successor is None or await self._is_replaced(successor):
            return False
        self._upgrade = None
        return await self._listen_again(gateway.config, certificate)

    async def _listen_again(self, config: Config, certificate: ssl.SSLContext | None) -> bool:
        """Open the logs and the port once more; return False if a signal came before that."""
        listening = self._loop.create_task(self.listen(config, certificate))
        stopping = self._loop.create_task(self._stop.wait())
        await asyncio.wait((listening, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not listening.done():
            listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        return not listening.cancelled()

    def _successor(self) -> Successor | None:
        """Return the process that takes over; one that is not ready yet does not."""
        upgrade = self._upgrade
        if upgrade is None:
            return None
        if upgrade.done():
            return upgrade.result()
        upgrade.cancel()
        return None

    async def _is_replaced(self, successor: Successor) -> bool:
        """Wait for the next process, or for a signal: then it is left to itself."""
        listening = self._loop.create_task(successor.is_listening())
        stopping = self._loop.create_task(self._stop.wait())
        await asyncio.wait((listening, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if listening.done() and not listening.result():
            return False
        listening.cancel()
        logger.info("handed over", extra={"pid": successor.pid})
        return True

    def _on_early_hangup(self) -> None:
        if self._has_lost_terminal():
            self._loop.remove_signal_handler(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)

    def _on_hangup(self) -> None:
        if self._has_lost_terminal():
            self._stop.set()
        elif not self.gateway.draining:
            _reload(self.gateway, self._reload)

    def _has_lost_terminal(self) -> bool:
        return self._had_terminal and not _has_terminal()

    def _on_upgrade(self) -> None:
        if ends_with_others():
            logger.error("no new process is started: restart the service or the container instead")
        elif self._upgrade is None and not self.gateway.draining:
            self._upgrade = self._loop.create_task(self._hand_over())

    async def _hand_over(self) -> Successor | None:
        self.gateway.prepare_stop()  # while the next process starts
        successor = await start_successor(self.gateway.sockets)
        if successor is None:
            self._upgrade = None
        else:
            self._stop.set()
        return successor


def allow_many_connections() -> None:
    """Raise the soft limit of open files, often 1,024 by default, to the hard limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def read_files(config: Config) -> ssl.SSLContext | None:
    """Return the certificate, None without TLS, and check key files. Raises ConfigError."""
    if config.admits_signed:
        with suppress(ModuleNotFoundError):  # the gateway says what to install
            from mcpp_gateway.tokens.service import check_keys

            check_keys(config)
    return read_certificate(config)


def _read_again(
    config: Config, certificate: ssl.SSLContext | None, reload: Callable[[], Config]
) -> tuple[Config, ssl.SSLContext | None]:
    """Return what may have changed while the other process stopped.

    There is no process any more to go on with: if it cannot be read now, the first is used.
    """
    try:
        fresh = reload()
        return fresh, read_files(fresh)
    except McppError as error:
        _log_not_reloaded(error)
        return config, certificate


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _reload(gateway: Gateway, reload: Callable[[], Config]) -> None:
    config = _apply(gateway, reload)
    if config is None:
        return
    for warning in config.warnings:
        logger.warning(warning)
    if gateway.config != config:
        logger.warning("changed addresses, logs and clusters take effect at the next restart")
    logger.info("configuration reloaded")


def _apply(gateway: Gateway, reload: Callable[[], Config]) -> Config | None:
    """Apply the configuration as it is now; None if it cannot be used, and nothing changes."""
    try:
        config = reload()
        gateway.reconfigure(config)
    except McppError as error:
        _log_not_reloaded(error)
        return None
    return config


def _log_not_reloaded(error: McppError) -> None:
    facts = {"reason": str(error)}
    logger.error("configuration not reloaded; the one before stays", extra=facts)


def _log_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log errors that asyncio reports in our own format."""
    error = context.get("exception")
    details = error if isinstance(error, BaseException) else None
    logger.error("%s", context.get("message"), exc_info=details)
