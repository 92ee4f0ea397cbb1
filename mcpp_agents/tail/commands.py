"""`mcpp tail`: watch what is said in a pod, as lines for people or as JSON for pipes."""

import argparse
import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Final

import anyio

import mcpp
from mcpp import Envelope, Pod, kinds
from mcpp.client.tasks import background
from mcpp.filters import Filter, everything
from mcpp.protocol import codec
from mcpp.protocol.contexts import ContextTracker
from mcpp.session.session import MISSED_MESSAGES, Gap
from mcpp_agents.cli import options
from mcpp_agents.cli.display import Palette, one_line, safe_json
from mcpp_agents.cli.shorthand import WORDS, read_filters

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
        help=f"only this: {WORDS}; or JSON. All words of one WHAT must hold, any of several",
    )
    parser.add_argument(
        "--last", type=int, default=_USUAL_HISTORY, metavar="N", help="begin so far back"
    )
    parser.add_argument("--no-follow", action="store_true", help="end with the history")
    parser.add_argument("--color", choices=("auto", "always", "never"), default="auto")
    parser.add_argument("--as", dest="name", metavar="NAME", help="join as this participant")
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    filter = read_filters(arguments.filter)
    lines = LinePrinter(Palette(_is_coloured(arguments.color)), tree=arguments.tree)
    show = print_json if arguments.json else lines.print

    def tell_gap(gap: Gap) -> None:
        sys.stderr.write("mcpp tail: some messages were missed\n")

    async def run() -> None:
        address = options.address_of_person(arguments, arguments.name)
        last = max(arguments.last, 0)
        connecting = mcpp.connect(
            address,
            name=arguments.name,
            filter=filter,
            # Some things come whatever the filter, and count: then the last few would be fewer.
            last=last if filter is None else MISSED_MESSAGES,
            own=True,
            on_gap=tell_gap,
        )
        async with connecting as pod:
            lines.learn(pod)
            follow = not arguments.no_follow
            await watch(pod, show, follow=follow, filter=filter or everything, last=last)

    anyio.run(run)
    return 0


async def watch(
    pod: Pod,
    show: Callable[[Envelope], None],
    *,
    follow: bool = True,
    filter: Filter = everything,
    last: int | None = None,
) -> None:
    """Show the last few of the history that pass, then what comes.

    Until the pod ends or, without `follow`, as far as the history goes.
    """
    held: deque[Envelope] = deque(maxlen=last)
    to_come = pod.history

    def show_held() -> None:
        while held:
            show(held.popleft())

    passes = _Test(pod, filter)
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
                wanted = passes(message.envelope)
                if message.replayed:
                    to_come -= 1
                    if wanted:
                        held.append(message.envelope)
                if not message.replayed or not to_come:
                    show_held()
                if wanted and not message.replayed:
                    show(message.envelope)
        show_held()


class _Test:
    """Whether an envelope is wanted. Owns what it has learned of the contexts.

    The gateway has filtered already, but for what comes whatever the filter: its own word, what we
    sent ourselves, and what is addressed to us.
    """

    def __init__(self, pod: Pod, filter: Filter) -> None:
        self._me = pod.me
        self._filter = filter
        self._lineages = known_lineages(pod)

    def __call__(self, envelope: Envelope) -> bool:
        lineage = self._lineages.observe(envelope)
        if envelope.kind == kinds.CONTEXT:
            self._lineages.forget(envelope.payload["context"]["id"])
        comes_anyway = (
            envelope.kind.startswith("system/")
            or envelope.sender == self._me
            or self._me in (envelope.to or ())
        )
        return not comes_anyway or self._filter.matches(envelope, lineage)


def known_lineages(pod: Pod) -> ContextTracker:
    """Return what the gateway told of the contexts that were there before us."""
    return ContextTracker(pod.contexts.values())


def print_json(envelope: Envelope) -> None:
    """Print an envelope as it travels, but for what a terminal would act on: that is escaped."""
    sys.stdout.write(safe_json(codec.encode(envelope).decode()) + "\n")
    sys.stdout.flush()


class LinePrinter:
    """Prints lines, as branches if wanted. Owns what it has learned of the contexts."""

    def __init__(self, palette: Palette, *, tree: bool = False) -> None:
        self._palette = palette
        self._tree = tree
        self._lineages = ContextTracker()
        self._known: set[str] = set()

    def learn(self, pod: Pod) -> None:
        """Learn of the contexts that were there before us."""
        self._lineages = known_lineages(pod)

    def print(self, envelope: Envelope) -> None:
        """Print the next envelope of the log."""
        sys.stdout.write("\n".join(self.render(envelope)) + "\n")
        sys.stdout.flush()

    def render(self, envelope: Envelope) -> list[str]:
        """Return the lines for the next envelope of the log."""
        place = self._lineages.observe(envelope)
        topic = self._lineages.find(envelope.correlation_id or "")
        if envelope.kind == kinds.CONTEXT:
            self._lineages.forget(envelope.payload["context"]["id"])
            self._known.discard(envelope.payload["context"]["id"])
        if not self._tree or place is None:
            return [self._palette.line(envelope, place=place, topic=topic)]
        depth = len(place.ancestors) + 1
        lines = []
        if place.id not in self._known:
            self._known.add(place.id)
            about = "" if envelope.context is None else _about(envelope.context)
            head = f"{' ' * 9}{'│ ' * (depth - 1)}┌ {place.type or 'context'} {place.id}{about}"
            lines.append(self._palette.paint(head, 2))
        return [*lines, self._palette.line(envelope, place=place, topic=topic, depth=depth)]


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
