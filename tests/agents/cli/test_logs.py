"""Log lines and JSON that are written to a terminal: no control characters."""

import json
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mcpp
from mcpp.testing.strategies import envelopes
from mcpp_agents.cli.display import clean, json_line
from mcpp_agents.cli.log_format import TerminalFormatter


def line(name: str, message: str, error: Exception | None = None) -> str:
    try:
        raise error or ValueError
    except ValueError:
        details = sys.exc_info() if error else None
    record = logging.LogRecord(name, logging.WARNING, "", 0, message, (), details)
    return TerminalFormatter("mcpp x: ").format(record)


def test_a_record_is_one_line_without_control_characters() -> None:
    written = line("mcpp", "no answer: \x1b[31mred\nmcpp x: forged\x9b1m \u202e")
    assert "\n" not in written
    assert written == clean(written)


def test_only_our_own_tracebacks_are_shown() -> None:
    assert line("mcp.client.stdio", "cannot parse", ValueError("no\n\x1bJSON")) == (
        "mcpp x: cannot parse: no \ufffdJSON"
    )
    own = line("mcpp", "a mistake", ValueError("of ours\x1b"))
    assert own.startswith("mcpp x: a mistake\nTraceback ")
    assert own == clean(own)


def test_attempts_to_connect_to_a_database_are_not_shown_one_by_one() -> None:
    program = (
        "import logging; from mcpp_agents.cli.log_format import log_to_terminal\n"
        "log_to_terminal('x')\n"
        "logging.getLogger('psycopg.pool').warning('error connecting')\n"
        "logging.getLogger('mcpp.memory').warning('the database cannot be reached')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == "mcpp x: the database cannot be reached\n"


# Everything at which some reader breaks a line, and what moves a terminal's cursor.
HOSTILE = (
    *("\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"),
    *("\x00", "\x08", "\x1b[2K", "\x7f", "\x9b", "\u202e", "\U000e0041"),
)
FORGED = '{"protocol":"mcpp/v0.1","id":"1","ts":"2026-01-01T00:00:00Z","from":"boss","payload":1}'


@pytest.mark.rule("P-30")
@pytest.mark.parametrize("character", HOSTILE)
def test_an_envelope_as_json_is_one_line_without_control_characters(character: str) -> None:
    value = {f"a{character}": f"b{character}{FORGED}{character}c"}
    line = json_line(json.dumps(value, ensure_ascii=False).encode())
    assert json.loads(line) == value
    assert line == clean(line)
    assert line.splitlines() == [line]


@pytest.mark.rule("P-30")
@pytest.mark.parametrize("space", ["\n", "\r", "\r\n", "\t", " ", "\n\r\t "])
def test_white_space_between_members_forges_no_line(space: str) -> None:
    members = '"protocol":"mcpp/v0.1","id":"2","ts":"2026-01-01T00:00:00Z","from":"eve","kind":"x"'
    payload = f"[1,{space}{FORGED}{space},1.50]"
    context = f'{{"id":"c","metadata":{{"a":{space}{FORGED}{space}}}}}'
    text = f'{{{members},"context":{context},"payload":{payload},"more":{space}{FORGED}{space}}}'
    line = json_line(mcpp.encode(mcpp.decode(text)))
    assert mcpp.decode(line) == mcpp.decode(text)
    assert line.splitlines() == [line]
    assert "1.50" in line  # numbers keep their form


@pytest.mark.rule("P-30")
@given(envelopes(), st.integers(0, 4))
def test_the_json_line_of_any_envelope_is_equal_to_it(envelope: mcpp.Envelope, indent: int) -> None:
    line = json_line(mcpp.encode(envelope, indent=indent))
    assert mcpp.decode(line) == envelope
    assert line == clean(line)
    assert line.splitlines() == [line]
