"""`mcpp link`: mirror chosen contexts between two pods."""

import argparse
import logging
import os
from pathlib import Path
from typing import Final

import anyio

from mcpp import McppError, filters
from mcpp.cli.shorthand import read_filter
from mcpp.client.local_pod import Address, find
from mcpp.client.tasks import until_signal
from mcpp.transports.token_sources import TokenSource, file_token
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal
from mcpp_agents.link.agent import LinkOptions, run_link
from mcpp_agents.link.mirror import TEXTS

logger = logging.getLogger("mcpp.link")
_DEFAULT_NAME: Final = "link"


def main(argv: list[str]) -> int:
    """Mirror until Ctrl-C."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if not (arguments.filter or arguments.context or arguments.all):
        parser.error("say what to mirror: --filter, --context or --all")
    log_to_terminal("link")
    logger.setLevel(logging.INFO)
    chosen = LinkOptions(
        filter=_filter(arguments),
        back=None if arguments.back is None else read_filter(arguments.back),
        is_one_way=arguments.one_way,
        as_is=(*TEXTS, *arguments.kind),
        through=frozenset(arguments.through),
        since=arguments.since,
        names=tuple(arguments.names or map(_name, (arguments.a, arguments.b))),
    )
    first, second = _address(arguments, "a"), _address(arguments, "b")
    anyio.run(until_signal, lambda: run_link(first, second, chosen))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp link",
        description="Mirror chosen envelopes of pod A to pod B, and the answers back. Pods may be "
        "of different gateways. Stopped and started again, it goes on where it was.",
        epilog="A and B are addresses such as ws://HOST:8787/ws?pod=sales, with a token in "
        "MCPP_TOKEN_A and MCPP_TOKEN_B or in a file, or folders in which `mcpp up` was started.",
    )
    parser.add_argument("a", metavar="A", help="the first pod")
    parser.add_argument("b", metavar="B", help="the second pod")
    what = parser.add_argument_group("what is mirrored")
    what.add_argument("--filter", metavar="FILTER", help="what passes, such as 'type:task'")
    what.add_argument(
        "--context", action="append", metavar="ID", help="a context with all below; repeatable"
    )
    what.add_argument("--all", action="store_true", help="everything")
    what.add_argument("--back", metavar="FILTER", help="from B to A, besides the answers")
    what.add_argument("--one-way", action="store_true", help="nothing from B to A, no answers")
    what.add_argument(
        "--kind",
        action="append",
        default=[],
        metavar="GLOB",
        help="kinds to mirror as they are, besides texts; others become link/KIND, which no "
        "participant acts on; repeatable",
    )
    what.add_argument(
        "--through",
        action="append",
        default=[],
        metavar="NAME",
        help="another link in A or B, whose mirrored envelopes go on; repeatable",
    )
    what.add_argument("--since", metavar="TIME", help="on the first start, begin at this time")
    parser.add_argument(
        "--names",
        nargs=2,
        metavar=("A", "B"),
        help="what to call the pods (default: their names, or those of their folders)",
    )
    parser.add_argument("--token-file-a", metavar="FILE", help="a file with the token for A")
    parser.add_argument("--token-file-b", metavar="FILE", help="a file with the token for B")
    options.add_name(parser, default=_DEFAULT_NAME)
    return parser


def _filter(arguments: argparse.Namespace) -> filters.Filter:
    if arguments.all:
        return filters.everything
    parts = [filters.in_context(id, descendants=True) for id in arguments.context or ()]
    if arguments.filter:
        parts.append(read_filter(arguments.filter))
    chosen = parts[0]
    for part in parts[1:]:
        chosen |= part
    return chosen


def _name(place: str) -> str | None:
    """Return what to call a pod: those of `mcpp up` have one name, so by its folder."""
    return None if "://" in place else Path(place).absolute().name


def _address(arguments: argparse.Namespace, which: str) -> Address:
    """Return the address of a pod, from its URL or the folder of `mcpp up`. Raises McppError."""
    place: str = getattr(arguments, which)
    file: str | None = getattr(arguments, f"token_file_{which}")
    variable = f"MCPP_TOKEN_{which.upper()}"
    if "://" in place:
        token: TokenSource | None = file_token(file) if file else os.environ.get(variable)
        if not token:
            raise McppError(f"{place} needs a token: set {variable} or --token-file-{which}")
        return Address(place, token)
    pod = find(Path(place)) if Path(place).is_dir() else None
    if pod is None:
        raise McppError(f"{place!r} is neither an address nor a folder with a pod")
    return Address(pod.url, pod.token(arguments.name) or pod.add(arguments.name))
