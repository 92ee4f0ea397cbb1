"""`mcpp search` finds messages of the past, `mcpp show` prints a context of the past."""

import argparse
import sys
from typing import Final

import anyio

import mcpp
from mcpp import filters
from mcpp.cli.shorthand import SEARCH_WORDS, Search, read_search
from mcpp.client.factory import local_now
from mcpp.filters import Filter
from mcpp.times import FORMS, parse_time
from mcpp_agents.cli import options
from mcpp_agents.cli.display import Palette, json_document
from mcpp_agents.history.highlight import Highlighter
from mcpp_agents.history.results import ResultPrinter, plural, render_entry
from mcpp_agents.history.transcript import to_json, to_markdown

_DEFAULT_LIMIT: Final = 50


def search(argv: list[str]) -> int:
    """Run `mcpp search`: find messages of the past."""
    arguments, wanted = parse_search(argv)

    async def run() -> None:
        address = options.address_of_person(arguments, arguments.name)
        # Only the past is asked for: let nothing else come.
        nothing = filters.parse({"any": []})
        async with mcpp.connect(address, name=arguments.name, filter=nothing) as pod:
            if arguments.count:
                reader = pod.history(**wanted._asdict())
                print(sum([1 async for _ in reader]))
            else:
                await _print_found(pod, wanted, arguments)

    anyio.run(run)
    return 0


def show(argv: list[str]) -> int:
    """Run `mcpp show`: print a context of the past with its descendants."""
    parser = argparse.ArgumentParser(
        prog="mcpp show",
        description="Print a context of the past, with all contexts below it, as a transcript: who "
        "said what and when, what was called and answered, and how it ended.",
    )
    parser.add_argument("context", metavar="CONTEXT", help="the id, as `mcpp search` prints it")
    parser.add_argument("--json", action="store_true", help="print one JSON object, not Markdown")
    _add_limit(parser, 10_000, "print at most the first N messages")
    options.add_name(parser)
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)

    async def run() -> None:
        address = options.address_of_person(arguments, arguments.name)
        nothing = filters.parse({"any": []})
        async with mcpp.connect(address, name=arguments.name, filter=nothing) as pod:
            found = await pod.context_of(arguments.context, limit=arguments.limit)
            if arguments.json:
                sys.stdout.write(json_document(to_json(found)) + "\n")
            else:
                sys.stdout.write(to_markdown(found))

    anyio.run(run)
    return 0


def _search_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mcpp search",
        description="Find messages of the past. The newest matches are printed, oldest first.",
        epilog=f"SEARCH, as in the inspector: {SEARCH_WORDS}. TIME: {FORMS}.",
    )
    parser.add_argument("search", nargs="*", metavar="SEARCH", help="what to look for; see below")
    for name, metavar, help in (
        ("--type", "TYPE", "only in contexts of this type"),
        ("--kind", "GLOB", "only kinds that match, such as mcp/*"),
        ("--from", "NAME", "only what this participant sent"),
        ("--context", "ID", "only in this context and those below it"),
        ("--since", "TIME", "only what was received at that time or later"),
        ("--until", "TIME", "only what was received before that time"),
    ):
        parser.add_argument(name, metavar=metavar, help=help, dest=f"{name[2:]}_")
    parser.add_argument(
        "--last",
        "--limit",
        dest="limit",
        type=options.positive,
        default=_DEFAULT_LIMIT,
        metavar="N",
        help=f"print at most N matches, the newest (default: {_DEFAULT_LIMIT})",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--count", action="store_true", help="print only how many match")
    output.add_argument(
        "--json", action="store_true", help="print lines of JSON with position, time and envelope"
    )
    options.add_color(parser)
    options.add_name(parser)
    options.add_arguments(parser)
    return parser


def _add_limit(parser: argparse.ArgumentParser, default: int, help: str) -> None:
    parser.add_argument(
        "--limit",
        type=options.positive,
        default=default,
        metavar="N",
        help=f"{help} (default: {default})",
    )


def parse_search(argv: list[str]) -> tuple[argparse.Namespace, Search]:
    """Return the arguments of `mcpp search`, and what words and options ask for together.

    Raises FilterError and TimeError.
    """
    arguments = _search_parser().parse_args(argv)
    written = read_search(" ".join(arguments.search))
    conditions: list[Filter] = [] if written.filter is None else [written.filter]
    for key in ("type", "kind", "from"):
        value = getattr(arguments, f"{key}_")
        if value is not None:
            conditions.append(filters.parse({key: value}))
    if arguments.context_ is not None:
        conditions.append(filters.in_context(arguments.context_, descendants=True))
    wanted = filters.everything
    for condition in conditions:
        wanted &= condition
    found = written._replace(
        filter=filters.parse(wanted.to_json()) if conditions else None,
        since=written.since if arguments.since_ is None else arguments.since_,
        until=written.until if arguments.until_ is None else arguments.until_,
    )
    for time in (found.since, found.until):
        if time is not None:
            parse_time(time, local_now())  # reports a mistake before anything is connected
    return arguments, found


async def _print_found(pod: mcpp.Pod, wanted: Search, arguments: argparse.Namespace) -> None:
    limit = arguments.limit
    newest = await pod.history(**wanted._asdict(), order="newest", limit=limit + 1).all()
    has_more = len(newest) > limit
    messages = newest[:limit][::-1]
    if arguments.json:
        for message in messages:
            sys.stdout.write(render_entry(message) + "\n")
    else:
        palette = Palette(options.is_coloured(arguments.color))
        printer = ResultPrinter(palette, Highlighter(wanted.text))
        for line in printer.render(messages, pod.contexts.values()):
            sys.stdout.write(line + "\n")
    sys.stdout.flush()
    if has_more:
        summary = f"the newest {plural(limit, 'message')}; there are more (--last)"
    else:
        summary = plural(len(messages), "message")
    sys.stderr.write(f"mcpp search: {summary}\n")
