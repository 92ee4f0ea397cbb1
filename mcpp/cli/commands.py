"""The SDK's own command: `mcpp schema`."""

import argparse
import sys

from mcpp.protocol.schema import render


def schema(argv: list[str]) -> int:
    """Run `mcpp schema`: print the JSON Schema of an envelope."""
    description = "Print the JSON Schema of an envelope."
    argparse.ArgumentParser(prog="mcpp schema", description=description).parse_args(argv)
    sys.stdout.write(render())
    return 0
