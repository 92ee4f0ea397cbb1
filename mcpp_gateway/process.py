"""A gateway as a process of its own: signals, open files, what is logged."""

import asyncio
import logging
import os
import resource
import signal
from collections.abc import Callable
from contextlib import suppress

from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.edge.server import Gateway, without_restart

logger = logging.getLogger("mcpp.gateway")


async def serve(
    config: Config,
    reload: Callable[[], Config],
    started: Callable[[Gateway], None],
    session_key: bytes | None = None,
) -> None:
    """Run a gateway until SIGTERM, SIGINT or the end of its terminal; SIGHUP reloads."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_report)
    allow_many_connections()
    gateway = Gateway(config, loop, session_key)
    await gateway.listen()
    stop = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop.set)
    # With nohup it is meant to outlive its terminal.
    had_terminal = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN and _has_terminal()

    def hang_up() -> None:
        if had_terminal and not _has_terminal():
            stop.set()  # somebody closed the window: nobody would know that we still run
        else:
            _reload(gateway, reload)

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    # Whoever was added since the configuration was read could not be told of yet.
    gateway.reconfigure(reload())
    for warning in config.warnings:
        logger.warning(warning)
    logger.info("listening", extra={"host": config.gateway.host, "port": gateway.port})
    started(gateway)
    await stop.wait()
    logger.info("draining", extra={"connections": len(gateway.connections)})
    await gateway.drain()


def allow_many_connections() -> None:
    """Raise the number of open files as far as this process may: by default it is often 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _has_terminal() -> bool:
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def _reload(gateway: Gateway, reload: Callable[[], Config]) -> None:
    try:
        config = reload()
    except ConfigError as error:
        logger.error("configuration not reloaded", extra={"reason": str(error)})  # noqa: TRY400
        return
    for warning in config.warnings:
        logger.warning(warning)
    if without_restart(gateway.config, config) != config:
        logger.warning("limits, addresses and certificates that changed wait for a restart")
    gateway.reconfigure(config)
    logger.info("configuration reloaded")


def _report(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """Log what asyncio complains of in our own format."""
    error = context.get("exception")
    details = error if isinstance(error, BaseException) else None
    logger.error("%s", context.get("message"), exc_info=details)
