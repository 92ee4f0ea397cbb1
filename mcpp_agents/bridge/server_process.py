"""An MCP server as a process that cannot outlive the bridge or write without limit.

It runs in a process group of its own, which is ended as a whole: by the bridge, or by a guard if
the bridge is killed. The guard is a shell that waits for the end of a pipe which only the bridge
holds open. (A parent-death signal would reach the server, but not its children: `npx` has some.)
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process

# How long a server may take to end after its standard input was closed, and after SIGTERM.
_END_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.01
_GUARD: Final = 'read -r _; kill -TERM "-$1" 2>/dev/null && sleep 2; kill -KILL "-$1" 2>/dev/null'

# What a server needs of the environment to run at all. Everything else may be a secret.
_PASSED: Final = (
    "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ",
    "USER",
)  # fmt: skip

# What is passed on of a server's standard error: so much at once, and so much per second.
_NOISE_BURST_BYTES: Final = 64 * 1024
_NOISE_BYTES_PER_SECOND: Final = 4 * 1024
_NOT_CONTROL: Final = bytes(
    byte if byte in b"\n\t" or 32 <= byte != 127 else ord("?") for byte in range(256)
)


def server_environment(names: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a server: the usual variables, and those named.

    Raises KeyError for a name that is not set.
    """
    usual = {name: given[name] for name in _PASSED if name in given}
    return usual | {name: given[name] for name in names}


@asynccontextmanager
async def server_process(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
) -> AsyncIterator[Process]:
    """Run a server while the block runs, then end it with all its children.

    It runs in `folder`, by default in ours. Raises OSError if the program cannot be run.
    """
    noise, noise_writer = os.pipe()
    # asyncio loses a process whose start is cancelled.
    with anyio.CancelScope(shield=True):
        try:
            process = await anyio.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=noise_writer,
                env=environment,
                cwd=folder,
                start_new_session=True,
            )
        except BaseException:
            os.close(noise)
            raise
        finally:
            os.close(noise_writer)
        # In a thread: if our standard error is not read, only the server has to wait.
        threading.Thread(target=_pass_noise, args=(noise,), name="noise", daemon=True).start()
        guard = await anyio.open_process(
            ["/bin/sh", "-c", _GUARD, "sh", str(process.pid)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
            with suppress(ProcessLookupError):
                guard.kill()
            await _close(guard)
            await _close(process)


async def _end(process: Process) -> None:
    """End a server: close its standard input, then signal its group."""
    assert process.stdin is not None
    with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    if not await _has_ended(process):
        _signal_group(process, signal.SIGTERM)
        await _has_ended(process)
    _signal_group(process, signal.SIGKILL)  # also the children that are left


async def _has_ended(process: Process) -> bool:
    """Wait a limited time for the end of a process, and return whether it has ended.

    Not with `wait`: that also waits for the end of pipes that a child may hold open.
    """
    with anyio.move_on_after(_END_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110
            await anyio.sleep(_POLL_SECONDS)
    return process.returncode is not None


def _signal_group(process: Process, order: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, order)


async def _close(process: Process) -> None:
    """Close our ends of a process's pipes; a descendant may hold the other ends open."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await stream.aclose()
    await _has_ended(process)
    # asyncio's transport stays open otherwise, and warns when it is collected.
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:
        with suppress(PermissionError):
            transport.close()


def _pass_noise(descriptor: int) -> None:
    """Copy a server's standard error to ours, within the limits, until it ends."""
    budget, at, left_out = float(_NOISE_BURST_BYTES), time.monotonic(), 0
    with os.fdopen(descriptor, "rb", buffering=0) as noise:
        while chunk := noise.read(65536):
            now = time.monotonic()
            budget = min(_NOISE_BURST_BYTES, budget + (now - at) * _NOISE_BYTES_PER_SECOND)
            at = now
            if len(chunk) > budget:
                left_out += len(chunk)
                continue
            budget -= len(chunk)
            if left_out:
                _write(b"\nmcpp bridge: %d bytes of the server's output left out\n" % left_out)
                left_out = 0
            _write(chunk.translate(_NOT_CONTROL))
    if left_out:
        _write(b"\nmcpp bridge: %d bytes of the server's output left out\n" % left_out)


def _write(data: bytes) -> None:
    with suppress(OSError, ValueError):
        os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, data)
