"""`mcpp tail`: print the messages of a pod, as lines for people or as JSON for pipes."""

import argparse
import sys
from typing import Final

import anyio

import mcpp
from mcpp.cli.shorthand import WORDS, read_filters
from mcpp.client.factory import local_now
from mcpp.filters import everything
from mcpp.times import FORMS, parse_time
from mcpp_agents.cli import options
from mcpp_agents.cli.display import Palette
from mcpp_agents.cli.joining import READER
from mcpp_agents.tail.follow import follow, follow_past
from mcpp_agents.tail.line_printer import LinePrinter, print_json

_DEFAULT_HISTORY: Final = 10
# As many messages as a gateway keeps by default.
_MAX_HISTORY: Final = 10_000


def main(argv: list[str]) -> int:
    """Print messages until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp tail", description="Print the messages of a pod: recent ones, then new ones."
    )
    parser.add_argument("--json", action="store_true", help="print envelopes as JSON lines")
    parser.add_argument("--tree", action="store_true", help="draw each context as a branch")
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="FILTER",
        help=f"show only matching messages. Terms: {WORDS}; or a filter as JSON. The terms of one "
        "FILTER must all match; of several FILTERs, one must match",
    )
    beginning = parser.add_mutually_exclusive_group()
    beginning.add_argument(
        "--last",
        type=int,
        default=_DEFAULT_HISTORY,
        metavar="N",
        help="show the last N messages first (default: %(default)s)",
    )
    beginning.add_argument(
        "--since", metavar="TIME", help=f"show the messages since then first: {FORMS}"
    )
    parser.add_argument("--no-follow", action="store_true", help="exit after the history")
    options.add_color(parser)
    options.add_name(parser)
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    filter = read_filters(arguments.filter)
    since = None if arguments.since is None else parse_time(arguments.since, local_now())
    # Live text grows in place, which only a terminal can show; it is in no log.
    shows_live = not (arguments.json or arguments.no_follow) and sys.stdout.isatty()
    lines = LinePrinter(Palette(options.is_coloured(arguments.color)), tree=arguments.tree)
    show = print_json if arguments.json else lines.print

    def report_gap(gap: mcpp.Gap) -> None:
        sys.stderr.write("mcpp tail: some messages were missed\n")

    async def run() -> None:
        address = options.address_of_person(arguments, arguments.name)
        last = max(arguments.last, 0) if since is None else 0
        connecting = mcpp.connect(
            address,
            name=arguments.name,
            filter=filter,
            # The gateway's count includes envelopes that bypass the filter, so ask for more.
            last=_MAX_HISTORY if last and filter is not None else last,
            own=True,
            live=shows_live,
            on_gap=report_gap,
        )
        async with connecting as pod:
            lines.learn(pod)
            if not arguments.no_follow and pod.cards.digest(pod.me) is None:
                await pod.cards.propose(READER)
            if since is not None:
                past = pod.history(filter, since=since)
                await follow_past(
                    pod, show, past, live=not arguments.no_follow, filter=filter or everything
                )
                return
            await follow(
                pod,
                show,
                live=not arguments.no_follow,
                filter=filter or everything,
                last=last,
            )

    anyio.run(run)
    return 0
