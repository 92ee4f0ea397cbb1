"""Tasks beside a block."""

from collections.abc import AsyncIterator
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
