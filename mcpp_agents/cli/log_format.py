"""Log output of the commands: one line per record, safe for a terminal."""

import logging
from typing import Final

from mcpp_agents.cli.display import clean, one_line

_MAX_CHARACTERS: Final = 500
# The pool of database connections logs each attempt, two lines for each of many; memory logs once
# when its database cannot be reached, and when it can.
_REPEATED: Final = frozenset({"psycopg.pool"})


def log_to_terminal(command: str) -> None:
    """Write warnings and errors to standard error, each prefixed with the command's name."""
    handler = logging.StreamHandler()
    handler.setFormatter(TerminalFormatter(f"mcpp {command}: "))
    handler.addFilter(lambda record: record.name not in _REPEATED)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


class TerminalFormatter(logging.Formatter):
    """Formats records as single lines without control characters, as they may quote peers."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line, followed by a traceback only for errors of our own code."""
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is None or record.exc_info is None:
            return self._prefix + one_line(text, _MAX_CHARACTERS)
        if not record.name.startswith("mcpp"):
            # A library failed on a peer's input; its traceback would not help.
            return self._prefix + one_line(f"{text}: {error}", _MAX_CHARACTERS)
        traceback = clean(self.formatException(record.exc_info))
        return f"{self._prefix}{one_line(text, _MAX_CHARACTERS)}\n{traceback}"
