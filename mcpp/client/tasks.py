"""Helpers for tasks: background tasks, ending on a signal, and isolating a caller's code."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

__all__ = ["background", "until_signal"]

T = TypeVar("T")


@asynccontextmanager
async def background() -> AsyncIterator[TaskGroup]:
    """Open a task group whose tasks are cancelled when the block ends.

    An exception from the block is raised unchanged. A bare task group would wrap it in an
    ExceptionGroup, which `except Refused` does not catch.
    """
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        try:
            yield tasks
        except Exception as error:  # re-raised below
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def until_signal(
    work: Callable[[], Awaitable[None]], *, ends_by_itself: bool = False
) -> None:
    """Run some work until it is done, or until Ctrl-C or SIGTERM cancels it.

    Args:
        work: a coroutine function without arguments.
        ends_by_itself: ignore further signals, for work that cleans up in a known time. By default
            a second signal ends the process at once.
    """

    async def listen(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                scope.cancel()
                if not ends_by_itself:
                    return

    async with background() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(listen, scope)
            await work()


class EscapedExitError(Exception):
    """Contained work raised SystemExit, or a cancellation that was not meant for its caller."""


async def contained(work: Awaitable[T]) -> T:
    """Await a user's code so that it can fail but cannot end the task that awaits it.

    Raises EscapedExitError if the work raises SystemExit, or a cancellation while the current task
    is not cancelled: on asyncio, awaiting a cancelled task looks like being cancelled.
    """
    try:
        return await work
    except SystemExit as error:
        raise EscapedExitError(f"it exited with {error.code!r}") from error
    except anyio.get_cancelled_exc_class() as error:
        await anyio.lowlevel.checkpoint_if_cancelled()
        if _is_cancelled_by_asyncio():
            raise
        raise EscapedExitError("a task that it awaited was cancelled") from error


def _is_cancelled_by_asyncio() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False  # trio only cancels by scopes
    return task is not None and task.cancelling() > 0
