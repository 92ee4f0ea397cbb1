"""Tasks beside a block, work that a signal ends, and work that must not end us."""

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

T = TypeVar("T")


@asynccontextmanager
async def background() -> AsyncIterator[TaskGroup]:
    """Run tasks that end with the block.

    What the block raises comes out as it is, where a bare task group would put it into an
    ExceptionGroup and `except Refused` would never see it.
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
    """Do some work until it is done, or until Ctrl-C or SIGTERM cancels it.

    A second signal ends us at once; not where the work `ends_by_itself`, in a time that is known,
    and would leave something behind.
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


class StrayEndError(Exception):
    """Somebody's work ended in a way that would have ended us: it exited, or was cancelled."""


async def contained(work: Awaitable[T]) -> T:
    """Await somebody's work, so that it can fail but never end whoever awaits it.

    Raises StrayEndError where the work exits, or is cancelled while we are not: on asyncio a task
    that awaits a cancelled one ends like one that is cancelled itself.
    """
    try:
        return await work
    except SystemExit as error:
        raise StrayEndError(f"it exited with {error.code!r}") from error
    except anyio.get_cancelled_exc_class() as error:
        await anyio.lowlevel.checkpoint_if_cancelled()
        if _is_cancelled_by_asyncio():
            raise
        raise StrayEndError("what it waited for was cancelled") from error


def _is_cancelled_by_asyncio() -> bool:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return False  # trio knows no other way than scopes
    return task is not None and task.cancelling() > 0
