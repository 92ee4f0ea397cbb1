"""Log formats, text or JSON lines; values from outside are escaped (G-48).

Lines are written by a thread, from a bounded queue (G-67): standard error may be a pipe that is not
read, and the gateway must not wait for it.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Final, Literal

from mcpp_gateway.queued_log import PROGRESS, QueuedHandler

_BAR_CHARACTERS: Final = 20
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(format: Literal["text", "json"]) -> None:
    """Send the gateway's logs to standard error."""
    handler = QueuedHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if format == "json" else _TextLines())
    logger = logging.getLogger("mcpp")
    for old in logger.handlers:
        old.close()
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(
            f" {_bar(value)}" if name == PROGRESS else f" {name}={escape(value)}"
            for name, value in _facts(record).items()
        )
        line = f"{_time(record)} {record.levelname.lower():7} {escape(record.getMessage())}{facts}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _bar(done: float) -> str:
    """Return a share of work as a bar, such as `[#####...............] 25 %`."""
    full = int(done * _BAR_CHARACTERS)
    return f"[{'#' * full}{'.' * (_BAR_CHARACTERS - full)}] {int(done * 100)} %"


def escape(value: object) -> str:
    """Return a value as text with control characters escaped, so that it cannot forge a line."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in str(value)
    )
