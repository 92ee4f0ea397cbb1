"""Log lines and JSON that are written to a terminal: no control characters."""

import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp_agents.cli.display import clean, safe_json
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


@pytest.mark.parametrize("character", ["\x7f", "\x9b", "\u202e", "\u2028", "\U000e0041"])
def test_json_output_has_no_control_characters(character: str) -> None:
    text = json.dumps({"text": f"a{character}b"}, ensure_ascii=False)
    assert character not in safe_json(text)


@given(st.dictionaries(st.text(), st.text()))
def test_escaped_json_has_the_same_value(value: dict[str, str]) -> None:
    text = json.dumps(value, ensure_ascii=False, indent="\t")
    assert json.loads(safe_json(text)) == value
    assert clean(safe_json(text)).replace(" ", "") == safe_json(text).replace("\t", "").replace(
        " ", ""
    )
