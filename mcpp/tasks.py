"""Tasks beside a block, and work that a signal ends."""

import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import TaskGroup


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


async def until_signal(work: Callable[[], Awaitable[None]]) -> None:
    """Do some work until it is done, or until Ctrl-C or SIGTERM cancels it."""

    async def listen(scope: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                scope.cancel()
                return

    async with background() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(listen, scope)
            await work()
