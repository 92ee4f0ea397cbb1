"""Lines of the log: values from outside cannot pass for other values, or for other lines."""

import json
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpp_gateway.log_format import _JsonLines, _TextLines

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
FORGED = "bye admin action request=1 admin=root action=drain status=200"
AUDIT: dict[str, Any] = {
    "name": "mcpp.gateway.audit",
    "msg": "admin action",
    "admin": "root",
    "target": {"participant": "x action=drain"},
    "result": "connections closed: 1",
}


def record(**facts: Any) -> logging.LogRecord:
    standard = {"name": "mcpp.gateway", "levelno": logging.INFO, "levelname": "INFO"}
    return logging.makeLogRecord({**standard, **facts})


def values(line: str) -> dict[str, str]:
    """Return the values of a text line, as a reader who knows JSON finds them."""
    decoder, found, at = json.JSONDecoder(), {}, 0
    while match := re.compile(r" (\w+)=").search(line, at):
        at = match.end()
        if line[at] in '"{[':
            found[match[1]], at = decoder.raw_decode(line, at)
        else:
            end = line.find(" ", at) if " " in line[at:] else len(line)
            found[match[1]], at = line[at:end], end
    return found


@pytest.mark.rule("G-48")
def test_a_value_cannot_pass_for_another() -> None:
    facts = {
        "plain": "10.0.0.7",
        "none": "",
        "reason": FORGED,
        "quoted": 'a" action="drain',
        "escaped": "\\",
        "address": "[::1]:8787",
        "target": {"name": 'x" action=drain'},
        "hidden": "a\u2028b\x85c\udc80",
    }
    line = _TextLines().format(record(msg="left", **facts))
    assert line.isprintable()
    assert values(line) == facts
    assert " plain=10.0.0.7 " in line


def fail(text: str) -> None:
    raise ValueError(text)


def documented(runs: str) -> str:
    """Return the documented pattern of the audit's lines."""
    (row,) = [each for each in OPERATIONS.read_text().splitlines() if each.startswith(f"| {runs}")]
    found = re.search(r"'([^']+)'", row)
    assert found is not None
    return found[1]


@pytest.mark.rule("G-48", "O-09")
@pytest.mark.parametrize(
    ("format", "runs", "option"),
    [(_TextLines, "in a shell", "-E"), (_JsonLines, "under systemd", "-P")],
)
def test_the_documented_patterns_find_the_audit_and_nothing_else(
    format: type[logging.Formatter], runs: str, option: str
) -> None:
    try:
        fail(f"first\n2026-01-01T00:00:00.000+00:00 info    {FORGED[4:]}")
    except ValueError:
        failure = sys.exc_info()
    json_line = '{"logger": "mcpp.gateway.audit"}'
    forged = [
        record(msg="left", reason=FORGED),
        record(msg="left", reason=f"\n{json_line}"),
        record(msg="failed", exc_info=failure),
        record(msg="joined", participant="x\n2026-01-01T00:00:00.000+00:00 info    admin action "),
        record(msg="left", target={"name": json_line}),
    ]
    lines = [format().format(each) for each in (*forged, record(**AUDIT))]
    command = ["grep", option, documented(runs)]
    found = subprocess.run(
        command, input="\n".join(lines), capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == lines[-1:]
