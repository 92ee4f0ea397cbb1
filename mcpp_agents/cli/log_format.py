"""What the commands log, as people read it: one line each, and safe for a terminal."""

import logging
from typing import Final

from mcpp_agents.cli.display import clean, one_line

_MAX_CHARACTERS: Final = 500


def log_to_terminal(command: str) -> None:
    """Have warnings written to standard error, each with the command's name before it."""
    handler = logging.StreamHandler()
    handler.setFormatter(TerminalFormatter(f"mcpp {command}: "))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


class TerminalFormatter(logging.Formatter):
    """Log records as lines: what others wrote is in them."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as one line; only a mistake of our own has its traceback below it."""
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        if error is None or record.exc_info is None:
            return self._prefix + one_line(text, _MAX_CHARACTERS)
        if not record.name.startswith("mcpp"):
            # A library that stumbles over what somebody sent.
            return self._prefix + one_line(f"{text}: {error}", _MAX_CHARACTERS)
        told = clean(self.formatException(record.exc_info))
        return f"{self._prefix}{one_line(text, _MAX_CHARACTERS)}\n{told}"
