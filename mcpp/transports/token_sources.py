"""Tokens that change: read anew for every connection, from a function, a file or a command."""

import shlex
import subprocess
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Final, TypeAlias

import anyio.to_thread

from mcpp.errors import TokenUnavailableError

__all__ = ["TokenSource", "command_token", "file_token", "read_token"]

TokenSource: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A token, or a function that returns the present one. It may be slow: it runs in a thread, unless
it is a coroutine function."""

_COMMAND_SECONDS: Final = 8.0  # less than opening a connection may take: to say what is slow


def file_token(path: str | Path) -> Callable[[], str]:
    """Return a source that reads a file, which another program may replace at any time."""

    def read() -> str:
        try:
            return Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
            raise TokenUnavailableError("", f"{path}: {reason}") from None

    return read


def command_token(command: str) -> Callable[[], str]:
    """Return a source that runs a command, whose first line of output is the token."""

    def run() -> str:
        try:
            done = subprocess.run(
                shlex.split(command),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMMAND_SECONDS,
                check=True,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            if isinstance(error, subprocess.CalledProcessError | subprocess.TimeoutExpired):
                error.cmd = error.cmd[0]  # its arguments may be secrets, too
            raise TokenUnavailableError("", f"the token command failed: {error}") from None
        # The output is not part of an error: it may be a secret.
        lines = done.stdout.decode(errors="replace").split("\n")
        return lines[0].strip()

    return run


async def read_token(source: TokenSource) -> str:
    """Return the present token of a source. Raises TokenUnavailableError."""
    if isinstance(source, str):
        return source
    try:
        found = await anyio.to_thread.run_sync(source, abandon_on_cancel=True)
        token: object = await found if isawaitable(found) else found
    except TokenUnavailableError:
        raise
    except Exception as error:
        raise TokenUnavailableError("", f"the token function failed: {error!r}") from error
    if not isinstance(token, str):  # its value is not part of an error: it may be a secret
        reason = f"the token function returned {type(token).__name__}, not str"
        raise TokenUnavailableError("", reason)
    return token
