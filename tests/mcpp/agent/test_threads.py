"""Blocking functions, called in threads."""

import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import anyio
import pytest

from mcpp.agent import threads
from mcpp.agent.resources import PromptTemplate, Resource
from mcpp.agent.threads import ThreadLimitError

pytestmark = pytest.mark.anyio

LEFT_BEHIND = """
import sys, threading, anyio
from mcpp.agent import threads

async def main():
    with anyio.move_on_after(0.01):
        await threads.call(threading.Event().wait)
    print("left")

anyio.run(main, backend=sys.argv[1])
"""


@pytest.fixture
def finish() -> threading.Event:
    """What blocked functions wait for."""
    return threading.Event()


async def test_a_cancelled_call_abandons_its_thread_and_frees_its_place(
    finish: threading.Event,
) -> None:
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(60):  # more than a pool has by default
                tasks.start_soon(functools.partial(threads.call, finish.wait))
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        assert await threads.call(lambda: "next") == "next"
    finish.set()


async def test_too_many_threads_are_an_error_of_their_own(
    finish: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "MAX_THREADS", 0)
    with pytest.raises(ThreadLimitError):
        await threads.call(finish.wait)


async def test_an_async_function_behind_a_sync_wrapper_is_awaited() -> None:
    async def double(number: int) -> int:
        await anyio.lowlevel.checkpoint()
        return number * 2

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **named: Any) -> Any:
            return function(*args, **named)

        return wrapper

    assert await threads.call(wrapped(double), number=2) == 4


async def test_a_thread_has_the_context_variables_of_its_caller() -> None:
    trace = ContextVar[str]("trace")
    trace.set("t-1")
    assert await threads.call(trace.get) == "t-1"


async def test_what_a_thread_raises_is_raised() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await threads.call(fail)


async def test_blocking_resources_and_prompts_run_concurrently(
    finish: threading.Event,
) -> None:
    def text() -> str:
        finish.wait(5)
        return "text"

    contents: list[Any] = []

    async def read() -> None:
        contents.append(
            (await Resource("memo://x", "x", "text/plain", text).read("memo://x", {}))["text"]
        )

    async def get() -> None:
        contents.append(
            (await PromptTemplate.from_function(text).get({}))["messages"][0]["content"]
        )

    with anyio.fail_after(4):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            tasks.start_soon(get)
            await anyio.wait_all_tasks_blocked()
            finish.set()
    assert len(contents) == 2


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_abandoned_thread_does_not_delay_the_exit(backend: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", LEFT_BEHIND, backend], timeout=20, capture_output=True, check=True
    )
    assert ended.stdout == b"left\n"
