"""`mcpp chat`: talk in a pod."""

import argparse
import sys
from typing import Final

import anyio
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output

import mcpp
from mcpp import McppError, Pod
from mcpp.errors import ConnectionLostError
from mcpp.tasks import background
from mcpp_agents import joining
from mcpp_agents.chat.actions import HELP, Actions
from mcpp_agents.chat.screen import Screen
from mcpp_agents.chat.transcript import Transcript

_HISTORY: Final = 500


def main(argv: list[str]) -> int:
    """Talk until /quit or Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp chat", description="Talk in a pod from a terminal.", epilog=HELP
    )
    parser.add_argument("--as", dest="name", metavar="NAME", help="join as this participant")
    joining.add_arguments(parser)
    arguments = parser.parse_args(argv)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise McppError("this is no terminal; `mcpp tail` and `mcpp send` do without one")

    async def run() -> None:
        address = joining.address_of_person(arguments, arguments.name)
        connecting = mcpp.connect(address, name=arguments.name, last=_HISTORY, own=True)
        async with connecting as pod:
            await talk(pod)

    anyio.run(run)
    return 0


async def talk(pod: Pod, *, input: Input | None = None, output: Output | None = None) -> None:
    """Show a pod, opened with `own=True`, until the person leaves."""
    transcript = Transcript()

    def status() -> str:
        where = f" · in {actions.context}" if actions.context else ""
        open_ones = sum(one.state == "open" for one in transcript.proposals.values())
        waiting = f" · {open_ones} to decide" if open_ones else ""
        return f"{pod.me} in {pod.name}{where} · {len(pod.participants)} here{waiting} · /help"

    screen = Screen(transcript, status, input=input, output=output)
    async with background() as tasks:
        actions = Actions(pod, transcript, tasks, screen.tell)

        async def do(line: str) -> None:
            if not await actions.do(line):
                screen.leave()
            screen.redraw()

        async def listen() -> None:
            try:
                async for message in pod:
                    transcript.add(message.envelope)
                    actions.toolbox.hear(message)
                    screen.redraw()
            except ConnectionLostError as error:
                screen.tell(f"{error}. Ctrl-C leaves.")

        screen.on_line = lambda line: tasks.start_soon(do, line)
        screen.on_decision = actions.decide
        tasks.start_soon(listen)
        await screen.run()
