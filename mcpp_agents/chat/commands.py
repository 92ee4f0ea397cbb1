"""`mcpp chat`: take part in a pod from a terminal."""

import argparse
import sys

import anyio

import mcpp
from mcpp.cli.extras import importing
from mcpp_agents.chat.actions import HELP
from mcpp_agents.chat.transcript import KEPT_ENVELOPES
from mcpp_agents.cli import options


def main(argv: list[str]) -> int:
    """Run the chat until /quit or Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp chat", description="Take part in a pod from a terminal.", epilog=HELP
    )
    parser.add_argument(
        "--last",
        type=int,
        default=KEPT_ENVELOPES,
        metavar="N",
        help="show the last N messages first (default: %(default)s)",
    )
    options.add_name(parser)
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    with importing("chat"):
        from mcpp_agents.chat.session import run_chat

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise mcpp.McppError("this needs a terminal; without one, use `mcpp tail` and `mcpp send`")

    async def run() -> None:
        address = options.address_of_person(arguments, arguments.name)
        last = max(arguments.last, 0)
        connecting = mcpp.connect(address, name=arguments.name, last=last, own=True, live=True)
        async with connecting as pod:
            await run_chat(pod)

    anyio.run(run)
    return 0
