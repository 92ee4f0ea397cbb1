"""The console script `mcpp`. Ctrl-C ends it silently, even during its imports.

During an import there is no handler for KeyboardInterrupt yet, and a library interrupted in the
middle of its own import may turn it into another error. Until the command runs, SIGINT therefore
has its default effect of ending the process.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> int:
    """Run the command line and return its exit code."""
    with default_interrupt():
        from mcpp.cli import main
    return main.main()


@contextmanager
def default_interrupt() -> Iterator[None]:
    """Let Ctrl-C end the process at once in this block, unless SIGINT has a custom handler."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
