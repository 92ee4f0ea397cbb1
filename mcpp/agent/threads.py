"""Functions that block, called beside the event loop.

Each gets a thread of its own, which is left to itself when nobody waits for it any more: a thread
cannot be stopped, but it holds up neither whoever was cancelled nor the end of the process.
"""

import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, Final

import anyio
from anyio.from_thread import BlockingPortal

from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure

# Those that nobody waits for included: as many as requests are served at once.
MAX_THREADS: Final = 256
_running: set[threading.Thread] = set()


async def call(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """Call a function and return its value: an async one here, any other in a thread.

    Raises Failure where too many threads are at work.
    """
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    # With our context variables: what traces or logs by them does so in a thread, too.
    value = await _in_thread(partial(copy_context().run, function, **arguments))
    return await value if inspect.isawaitable(value) else value


async def _in_thread(work: Callable[[], Any]) -> Any:
    if len(_running) >= MAX_THREADS:
        raise Failure(rpc.BUSY, "busy: too many threads at work")
    values: list[Any] = []
    errors: list[BaseException] = []
    done = anyio.Event()
    async with BlockingPortal() as portal:

        def run() -> None:
            try:
                values.append(work())
            except BaseException as error:  # raised below
                errors.append(error)
            _running.discard(thread)
            with suppress(RuntimeError):  # nobody waits any more
                portal.start_task_soon(done.set)

        # Python waits at its end for all threads but daemons.
        thread = threading.Thread(target=run, name="mcpp", daemon=True)
        _running.add(thread)
        thread.start()
        await done.wait()
    for error in errors:
        raise error
    return values[0]
