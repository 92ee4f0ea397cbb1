"""The SDK's own command: `mcpp schema`."""

import argparse
import sys

from mcpp.cli import asyncapi
from mcpp.protocol.schema import render


def schema(argv: list[str]) -> int:
    """Run `mcpp schema`: print the JSON Schema of an envelope, or the AsyncAPI document."""
    description = "Print the JSON Schema of an envelope."
    parser = argparse.ArgumentParser(prog="mcpp schema", description=description)
    parser.add_argument("--asyncapi", action="store_true", help="the wire as AsyncAPI instead")
    arguments = parser.parse_args(argv)
    sys.stdout.write(asyncapi.render() if arguments.asyncapi else render())
    return 0
