"""A chat session: connects a pod, its transcript, the screen and the person's actions."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Final

import anyio
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output

from mcpp import ConnectionLostError, Gap, McppError, Pod
from mcpp.client.tasks import background
from mcpp.kinds import is_live
from mcpp_agents.chat.actions import Actions
from mcpp_agents.chat.screen import Screen
from mcpp_agents.chat.transcript import Transcript
from mcpp_agents.cli.display import one_line
from mcpp_agents.cli.joining import PERSON

_POLL_SECONDS: Final = 0.5


async def run_chat(pod: Pod, *, input: Input | None = None, output: Output | None = None) -> None:
    """Show a pod, opened with `own=True`, until the person leaves."""
    await pod.cards.propose(PERSON)
    transcript = Transcript(pod.me)
    ended = anyio.Event()

    def status() -> str:
        if screen.is_choosing:
            return "↑ ↓ PgUp PgDn move · Enter opens · a approves · r rejects · Tab or / types"
        where = "" if actions.context is None else f" · in [{transcript.number(actions.context)}]"
        undecided = sum(one.waits_for(pod.me) for one in transcript.proposals.values())
        decisions = f" · {undecided} to decide" if undecided else ""
        state = f"{len(pod.participants)} here" if pod.connected else "not connected, trying again"
        if ended.is_set():
            state = "disconnected, Ctrl-C leaves"
        return f"{pod.me} in {pod.name}{where} · {state}{decisions} · /help"

    screen = Screen(transcript, status, input=input, output=output)
    async with background() as tasks:
        actions = Actions(pod, transcript, tasks, screen.notify)

        async def do(line: str) -> None:
            if not await actions.do(line):
                screen.leave()
            screen.redraw()

        async def add_open() -> None:
            await add_open_proposals(pod, transcript)
            screen.redraw()

        async def listen() -> None:
            try:
                remaining = pod.replayed
                if not remaining:
                    tasks.start_soon(add_open)
                while True:
                    received = await pod.next()
                    if isinstance(received, Gap):
                        transcript.add_gap(received)
                    elif is_live(received.kind):
                        transcript.add_part(received.envelope, monotonic())
                    else:
                        transcript.add(received.envelope)
                        actions.observe(received)
                        if received.replayed:
                            remaining -= 1
                            if not remaining:
                                tasks.start_soon(add_open)
                    screen.redraw()
            except ConnectionLostError as error:
                ended.set()
                screen.notify(f"{error}.")

        was_connected = True

        def show_log_record(text: str) -> None:
            nonlocal was_connected
            was_connected &= pod.connected  # it may be connected again at the next poll
            screen.notify(text)

        async def report_reconnection() -> None:
            nonlocal was_connected
            while True:
                await anyio.sleep(_POLL_SECONDS)
                if transcript.live.expire(monotonic()):
                    screen.redraw()
                if ended.is_set():
                    return  # leave the reason on the screen
                if pod.connected != was_connected:
                    was_connected = pod.connected
                    screen.notify("Connected again." if was_connected else "")

        screen.on_line = lambda line: tasks.start_soon(do, line)
        screen.on_approval = actions.approve
        screen.names = lambda: [name for name in pod.participants if name != pod.me]
        tasks.start_soon(listen)
        tasks.start_soon(report_reconnection)
        with _log_to(show_log_record):
            await screen.run()


async def add_open_proposals(pod: Pod, transcript: Transcript) -> None:
    """Show the proposals that wait for a decision but are older than the loaded messages."""
    try:
        waiting = await pod.open_proposals(rejected=True)
    except McppError as error:
        transcript.notify(f"Cannot read which proposals are open: {error}.")
        return
    for message in waiting:
        if message.id not in transcript.proposals:
            transcript.add(message.envelope)


@contextmanager
def _log_to(show: Callable[[str], None]) -> Iterator[None]:
    """Show log records on the screen; written to standard error, they would garble it."""

    class ScreenHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            show(one_line(record.getMessage()))

    handler = ScreenHandler(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
