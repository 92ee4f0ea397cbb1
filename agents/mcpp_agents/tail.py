"""`mcpp tail`: watch what is said in a pod, as lines for people or as JSON for pipes."""

import argparse
import os
import sys
from collections.abc import Callable
from typing import Final

import anyio

import mcpp
from mcpp import Envelope, Pod, codec, kinds
from mcpp.contexts import Lineages
from mcpp.filters import Filter, everything
from mcpp.session import Gap
from mcpp.tasks import background
from mcpp_agents import joining
from mcpp_agents.display import Palette, one_line
from mcpp_agents.shorthand import read_filters

_USUAL_HISTORY: Final = 10


def main(argv: list[str]) -> int:
    """Watch a pod until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp tail", description="Show what is said in a pod, from the last few messages on."
    )
    parser.add_argument("--json", action="store_true", help="print the envelopes, one to a line")
    parser.add_argument("--tree", action="store_true", help="draw each context as a branch")
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="WHAT",
        help="only this: main, conclusions, kind:GLOB, from:NAME, to:NAME, type:TYPE, context:ID, "
        "`not` before one; or JSON. All words of one WHAT must hold, any of several",
    )
    parser.add_argument(
        "--last", type=int, default=_USUAL_HISTORY, metavar="N", help="begin so far back"
    )
    parser.add_argument("--no-follow", action="store_true", help="end with the history")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.add_argument("--as", dest="name", metavar="NAME", help="join as this participant")
    joining.add_arguments(parser)
    arguments = parser.parse_args(argv)
    filter = read_filters(arguments.filter)
    palette = Palette(_is_coloured(arguments.color))
    show = print_json if arguments.json else Lines(palette, tree=arguments.tree).print

    def tell_gap(gap: Gap) -> None:
        sys.stderr.write("mcpp tail: some messages were missed\n")

    async def run() -> None:
        address = joining.address_of_person(arguments, arguments.name)
        connecting = mcpp.connect(
            address,
            name=arguments.name,
            filter=filter,
            last=max(arguments.last, 0),
            own=True,
            on_gap=tell_gap,
        )
        async with connecting as pod:
            await watch(pod, show, follow=not arguments.no_follow, filter=filter or everything)

    anyio.run(run)
    return 0


async def watch(
    pod: Pod, show: Callable[[Envelope], None], *, follow: bool = True, filter: Filter = everything
) -> None:
    """Show what comes, until the pod ends or, without `follow`, as far as the history goes."""
    async with background() as tasks:
        with anyio.CancelScope() as scope:

            async def stop_after_history() -> None:
                # Nothing can be sent before the history has come (P-01), so this answer marks its
                # end; whoever reads is cancelled only when nothing is left to read.
                await pod.set_filter(filter)
                scope.cancel()

            if not follow:
                tasks.start_soon(stop_after_history)
            async for message in pod:
                # The gateway's own word comes whatever the filter; we asked for less.
                if not message.kind.startswith("system/") or filter.matches(message.envelope, None):
                    show(message.envelope)


def print_json(envelope: Envelope) -> None:
    """Print an envelope as it travels."""
    sys.stdout.write(codec.encode(envelope).decode() + "\n")
    sys.stdout.flush()


class Lines:
    """Prints lines, as branches if wanted. Owns what it has learned of the contexts."""

    def __init__(self, palette: Palette, *, tree: bool = False) -> None:
        self._palette = palette
        self._tree = tree
        self._lineages = Lineages()
        self._known: set[str] = set()

    def print(self, envelope: Envelope) -> None:
        """Print the next envelope of the log."""
        sys.stdout.write("\n".join(self.render(envelope)) + "\n")
        sys.stdout.flush()

    def render(self, envelope: Envelope) -> list[str]:
        """Return the lines for the next envelope of the log."""
        lineage = self._lineages.observe(envelope.context)
        if envelope.kind == kinds.CONTEXT:
            self._lineages.forget(envelope.payload["context"]["id"])
            self._known.discard(envelope.payload["context"]["id"])
        if not self._tree or lineage is None:
            return [self._palette.line(envelope)]
        depth = len(lineage.ancestors) + 1
        lines = []
        if lineage.id not in self._known:
            self._known.add(lineage.id)
            about = "" if envelope.context is None else _about(envelope.context)
            head = f"{' ' * 9}{'│ ' * (depth - 1)}┌ {lineage.type or 'context'} {lineage.id}{about}"
            lines.append(self._palette.paint(head, 2))
        return [*lines, self._palette.line(envelope, depth)]


def _about(context: mcpp.Context) -> str:
    facts = [
        f"{name}={value}"
        for name, value in (context.metadata or {}).items()
        if isinstance(value, str | int | float) and name != "started_at"
    ]
    return f" ({one_line(', '.join(facts), 80)})" if facts else ""


def _is_coloured(choice: str) -> bool:
    if choice != "auto":
        return choice == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")
