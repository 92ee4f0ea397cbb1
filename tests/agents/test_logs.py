"""What reaches a terminal: lines that steer nothing."""

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
        trouble = sys.exc_info() if error else None
    record = logging.LogRecord(name, logging.WARNING, "", 0, message, (), trouble)
    return TerminalFormatter("mcpp x: ").format(record)


def test_a_line_is_one_line_whatever_others_wrote() -> None:
    told = line("mcpp", "no answer: \x1b[31mred\nmcpp x: forged\x9b1m \u202e")
    assert "\n" not in told
    assert told == clean(told)


def test_a_librarys_traceback_is_one_line_and_our_own_is_kept() -> None:
    assert line("mcp.client.stdio", "cannot parse", ValueError("no\n\x1bJSON")) == (
        "mcpp x: cannot parse: no \ufffdJSON"
    )
    own = line("mcpp", "a mistake", ValueError("of ours\x1b"))
    assert own.startswith("mcpp x: a mistake\nTraceback ")
    assert own == clean(own)


@pytest.mark.parametrize("character", ["\x7f", "\x9b", "\u202e", "\u2028", "\U000e0041"])
def test_json_for_a_pipe_steers_no_terminal(character: str) -> None:
    text = json.dumps({"text": f"a{character}b"}, ensure_ascii=False)
    assert character not in safe_json(text)


@given(st.dictionaries(st.text(), st.text()))
def test_escaped_json_says_the_same(value: dict[str, str]) -> None:
    text = json.dumps(value, ensure_ascii=False, indent="\t")
    assert json.loads(safe_json(text)) == value
    assert clean(safe_json(text)).replace(" ", "") == safe_json(text).replace("\t", "").replace(
        " ", ""
    )
