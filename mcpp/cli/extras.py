"""Imports of optional packages in commands.

A command module imports the packages of its extra in the functions that need them, so that
`mcpp COMMAND --help` works without the extra:

def main(argv: list[str]) -> int:
    arguments = parser().parse_args(argv)
    with importing("chat"):
        import prompt_toolkit
    ...
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from mcpp.cli.console import default_interrupt
from mcpp.errors import McppError

__all__ = ["MissingExtraError", "importing", "missing_extra"]

DISTRIBUTION: Final = "mcpp-pods"


class MissingExtraError(McppError):
    """A package from an extra is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(package, extra)
        self.package = package
        self.extra = extra

    def __str__(self) -> str:
        return f"needs {self.package}: pip install '{DISTRIBUTION}[{self.extra}]'"


@contextmanager
def importing(extra: str) -> Iterator[None]:
    """Import an extra's packages in the block; Ctrl-C ends the process during the import.

    Raises MissingExtraError if one is not installed. The command line prints it with its name.
    """
    try:
        with default_interrupt():
            yield
    except ModuleNotFoundError as error:
        missing = missing_extra(error, extra)
        if missing is None:
            raise
        raise missing from None


def missing_extra(error: ModuleNotFoundError, extra: str | None) -> MissingExtraError | None:
    """Return the error for a module that is not installed, or None if it is one of our own."""
    package = (error.name or "mcpp").partition(".")[0]
    if extra is None or package in ("mcpp", "mcpp_agents", "mcpp_gateway"):
        return None
    return MissingExtraError(package, extra)
