"""The SDK's own command: `mcpp schema`."""

import argparse
import sys

from mcpp.protocol.schema import render


def schema(argv: list[str]) -> int:
    """Print the schema: the command `mcpp schema`."""
    argparse.ArgumentParser(prog="mcpp schema", description="Print the JSON Schema.").parse_args(
        argv
    )
    sys.stdout.write(render())
    return 0
