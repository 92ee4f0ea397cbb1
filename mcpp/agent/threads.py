"""Calls blocking functions in threads.

Each call gets its own daemon thread. A cancelled call abandons its thread: a thread cannot be
stopped, but an abandoned one delays neither the cancelled task nor the end of the process. It still
counts for the requester whose call it ran, and for no other (P-43).
"""

import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final

import anyio
from anyio.from_thread import BlockingPortal

from mcpp.agent.shares import Shares

# Abandoned threads count, too. As many as the requests served at once.
MAX_THREADS: Final = 256
# The participant whose request is served by the current task; empty for the agent's own work.
requester: ContextVar[str] = ContextVar("requester", default="")
_threads = Shares(MAX_THREADS)
_lock = threading.Lock()


class ThreadLimitError(RuntimeError):
    """A blocking function was not called: too many threads are running."""


async def call(function: Callable[..., Any], /, **arguments: Any) -> Any:
    """Call a function and return its value: an async one directly, any other in a thread.

    Raises ThreadLimitError if this requester has too many threads running, and what the function
    raises.
    """
    if inspect.iscoroutinefunction(function):
        return await function(**arguments)
    # Copy the context variables, so that tracing and logging work in the thread.
    value = await _in_thread(partial(copy_context().run, function, **arguments))
    return await value if inspect.isawaitable(value) else value


async def _in_thread(work: Callable[[], Any]) -> Any:
    caller, threads = requester.get(), _threads
    with _lock:
        if not threads.take(caller):
            raise ThreadLimitError(f"{threads.held(caller)} threads are running")
    values: list[Any] = []
    errors: list[BaseException] = []
    done = anyio.Event()
    async with BlockingPortal() as portal:

        def run() -> None:
            try:
                values.append(work())
            except BaseException as error:  # raised below
                errors.append(error)
            with _lock:
                threads.release(caller)
            with suppress(RuntimeError):  # the call was cancelled
                portal.start_task_soon(done.set)

        # At exit, Python waits for all threads except daemons.
        try:
            threading.Thread(target=run, name="mcpp", daemon=True).start()
        except RuntimeError as full:  # the system has no more threads
            with _lock:
                threads.release(caller)
            errors.append(ThreadLimitError(str(full)))
        else:
            await done.wait()
    for error in errors:
        raise error
    return values[0]
