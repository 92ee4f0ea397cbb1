"""`mcpp otel`: export a pod's contexts as traces of OpenTelemetry."""

import argparse
import sys
from pathlib import Path

import anyio

import mcpp
from mcpp.cli.extras import importing
from mcpp.client.tasks import until_signal
from mcpp_agents.cli import options
from mcpp_agents.cli.log_format import log_to_terminal
from mcpp_agents.cli.tracing import make_exporter


def main(argv: list[str]) -> int:
    """Export contexts until Ctrl-C."""
    parser = argparse.ArgumentParser(
        prog="mcpp otel",
        description="Export the contexts of a pod as traces of OpenTelemetry, as they end. It only "
        "listens: its participant needs no capability, and the gateway does no work for it.",
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--endpoint",
        type=options.web_address,
        metavar="URL",
        help="where to send spans (OTLP over HTTP), such as http://127.0.0.1:4318/v1/traces; by "
        "default, what OTEL_EXPORTER_OTLP_ENDPOINT says, or this machine",
    )
    where.add_argument("--console", action="store_true", help="print spans as JSON instead")
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help="keep the position in the log and the open contexts here, and go on from there",
    )
    parser.add_argument(
        "--last",
        type=int,
        default=0,
        metavar="N",
        help="without a stored position, begin with the last N envelopes (default: %(default)s)",
    )
    options.add_name(parser, default="otel")
    options.add_arguments(parser)
    arguments = parser.parse_args(argv)
    log_to_terminal("otel")
    with importing("otel"):
        from mcpp_agents.otel.exporter import ContextExporter
        from mcpp_agents.otel.state import ExportState, open_state

        exporter = make_exporter("console" if arguments.console else "otlp", arguments.endpoint)
    state = ExportState() if arguments.state is None else open_state(arguments.state)
    address = options.address_of(arguments, arguments.name)

    async def run() -> None:
        contexts = ContextExporter(exporter, state, arguments.state)
        last = None if state.after is not None else max(arguments.last, 0)
        connecting = mcpp.connect(
            address, name=arguments.name, after=state.after, last=last, own=True
        )
        async with connecting as pod:
            sys.stderr.write(f"mcpp otel: {pod.me} is in the pod\n")
            await contexts.follow(pod)

    anyio.run(until_signal, run)
    return 0
