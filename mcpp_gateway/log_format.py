"""Log formats, text or JSON lines; values from outside are escaped and quoted (G-48).

Lines are written by a thread, from a bounded queue (G-67): standard error may be a pipe that is not
read, and the gateway must not wait for it.
"""

import json
import logging
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal

from mcpp_gateway.queued_log import PROGRESS, QueuedHandler

_BAR_CHARACTERS: Final = 20
# What is written without quotes: it is one word, and no other fact.
_BARE: Final = re.compile(r"(?![{\[])[^\s=\"'\\]+")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(format: Literal["text", "json"], *, is_gateway: bool = True) -> None:
    """Send the gateway's logs to standard error, or all warnings of a process that it runs."""
    handler = QueuedHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if format == "json" else _TextLines())
    logger = logging.getLogger("mcpp") if is_gateway else logging.getLogger()
    for old in logger.handlers:
        old.close()
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO if is_gateway else logging.WARNING)
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
            "logger": record.name,
            "event": record.getMessage(),
            **_facts(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class _TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(
            f" {_bar(value)}" if name == PROGRESS else f" {name}={_quoted(value)}"
            for name, value in _facts(record).items()
        )
        line = f"{_time(record)} {record.levelname.lower():7} {escape(record.getMessage())}{facts}"
        if record.exc_info:
            # Indented, as a text in it must not begin a line of the log.
            for each in self.formatException(record.exc_info).split("\n"):
                line += f"\n  {escape(each)}"
        return line


def _quoted(value: object) -> str:
    """Return a value as a word, or as JSON if it could be taken for more than one fact."""
    if isinstance(value, (Mapping, list, tuple)):
        text = json.dumps(value, default=str, ensure_ascii=False)
    else:
        text = str(value)
        if _BARE.fullmatch(text) and text.isprintable():
            return text
        text = json.dumps(text, ensure_ascii=False)
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


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
