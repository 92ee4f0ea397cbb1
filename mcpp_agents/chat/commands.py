"""`mcpp chat`: talk in a pod."""

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import anyio
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output

import mcpp
from mcpp import Gap, McppError, Pod
from mcpp.client.tasks import background
from mcpp.errors import ConnectionLostError
from mcpp_agents.chat.actions import HELP, Actions
from mcpp_agents.chat.screen import Screen
from mcpp_agents.chat.transcript import KEPT_ENVELOPES, Transcript
from mcpp_agents.cli import options
from mcpp_agents.cli.display import one_line

_LOOK_SECONDS: Final = 0.5


def main(argv: list[str]) -> int:
    """Talk until /quit or Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp chat", description="Talk in a pod from a terminal.", epilog=HELP
    )
    parser.add_argument("--as", dest="name", metavar="NAME", help="join as this participant")
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise McppError("this is no terminal; `mcpp tail` and `mcpp send` do without one")

    async def run() -> None:
        address = options.address_of_person(arguments, arguments.name)
        connecting = mcpp.connect(address, name=arguments.name, last=KEPT_ENVELOPES, own=True)
        async with connecting as pod:
            await talk(pod)

    anyio.run(run)
    return 0


async def talk(pod: Pod, *, input: Input | None = None, output: Output | None = None) -> None:
    """Show a pod, opened with `own=True`, until the person leaves."""
    transcript = Transcript(pod.me)
    ended = anyio.Event()

    def status() -> str:
        if screen.is_choosing:
            return "↑ ↓ PgUp PgDn move · Enter opens · a approves · r rejects · Tab or / types"
        where = "" if actions.context is None else f" · in [{transcript.number(actions.context)}]"
        open_ones = sum(one.waits_for(pod.me) for one in transcript.proposals.values())
        waiting = f" · {open_ones} to decide" if open_ones else ""
        here = f"{len(pod.participants)} here" if pod.connected else "not connected, trying again"
        if ended.is_set():
            here = "no longer connected, Ctrl-C leaves"
        return f"{pod.me} in {pod.name}{where} · {here}{waiting} · /help"

    screen = Screen(transcript, status, input=input, output=output)
    async with background() as tasks:
        actions = Actions(pod, transcript, tasks, screen.tell)

        async def do(line: str) -> None:
            if not await actions.do(line):
                screen.leave()
            screen.redraw()

        async def listen() -> None:
            try:
                while True:
                    heard = await pod.next()
                    if isinstance(heard, Gap):
                        transcript.miss(heard)
                    else:
                        transcript.add(heard.envelope)
                        actions.hear(heard)
                    screen.redraw()
            except ConnectionLostError as error:
                ended.set()
                screen.tell(f"{error}.")

        was_connected = True

        def tell_logged(text: str) -> None:
            nonlocal was_connected
            was_connected &= pod.connected  # it may be back before anybody looks
            screen.tell(text)

        async def watch_the_line() -> None:
            nonlocal was_connected
            while True:
                await anyio.sleep(_LOOK_SECONDS)
                if ended.is_set():
                    return  # and what was told of it stays
                if pod.connected != was_connected:
                    was_connected = pod.connected
                    screen.tell("Connected again." if was_connected else "")

        screen.on_line = lambda line: tasks.start_soon(do, line)
        screen.on_approval = actions.approve
        tasks.start_soon(listen)
        tasks.start_soon(watch_the_line)
        with _logged_to(tell_logged):
            await screen.run()


@contextmanager
def _logged_to(tell: Callable[[str], None]) -> Iterator[None]:
    """Have what is logged told on the screen: written beside it, it would tear it apart."""

    class Telling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(one_line(record.getMessage()))

    handler = Telling(logging.WARNING)
    logging.getLogger().addHandler(handler)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(handler)
