"""The console script: Ctrl-C ends it without a word, even while it is still being imported.

Nobody is there yet to catch a KeyboardInterrupt, and a library that meets one in the middle of its
own import may turn it into another error. So until there is something to leave in order, the
signal does what it does to any program.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


def main() -> int:
    """Run the command line and return its exit code."""
    with ended_at_once():
        from mcpp.cli import main
    return main.main()


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once in this block, unless somebody else has a say in it."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
