"""Runs a gateway as a process: signals, the limit of open files, logging."""

import asyncio
import logging
import os
import resource
import signal
import ssl
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from mcpp.errors import McppError
from mcpp_gateway.config import Config
from mcpp_gateway.edge.listener import read_certificate
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.handover import (
    Successor,
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
) -> None:
    """Run a gateway until SIGTERM, SIGINT or the end of its terminal; SIGHUP reloads.

    `started` is called once the port is open.
    """
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_loop_error)
    allow_many_connections()
    if config.log.kind == "file":
        # The thread that writes the log gets its turn sooner: 10 % more throughput.
        sys.setswitchinterval(0.0005)
    certificate = read_files(config)  # while a process that this one replaces can still go on
    if wait_for_predecessor():
        config, certificate = _read_again(config, certificate, reload)
    gateway = create(config, loop, session_key)
    await gateway.listen(inherited_sockets(), certificate)
    stop = asyncio.Event()
    successors: list[Successor] = []
    gateway.on_drain_request = stop.set
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    # Under nohup it should outlive its terminal.
    had_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def on_hangup() -> None:
        if had_terminal and not _has_terminal():
            stop.set()  # the terminal was closed
        else:
            _reload(gateway, reload)

    async def hand_over() -> None:
        successor = await start_successor(gateway.sockets)
        if successor is not None:
            successors.append(successor)
            stop.set()

    tasks: set[asyncio.Task[None]] = set()

    def on_upgrade() -> None:
        if not tasks:
            task = loop.create_task(hand_over())
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGUSR2, on_upgrade)
    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    # Participants may have been added since the configuration was read, before SIGHUP was handled.
    _apply(gateway, reload)
    facts = {"host": config.gateway.host, "port": gateway.port, "pid": os.getpid()}
    logger.info("listening", extra=facts)
    for warning in config.warnings:
        logger.warning(warning)
    await started(gateway)
    await stop.wait()
    logger.info("draining", extra={"connections": len(gateway.connections)})
    await gateway.drain(handing_over=bool(successors))
    for successor in successors:
        logger.info("handed over", extra={"pid": successor.pid})
        successor.release()


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
