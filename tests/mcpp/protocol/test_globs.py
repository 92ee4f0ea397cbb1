"""Globs with `*` as the only wildcard."""

import pytest

from mcpp.protocol.globs import compile_glob


@pytest.mark.rule("F-16")
@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("chat", "chat", True),
        ("chat", "chats", False),
        ("chat", "Chat", False),
        ("", "", True),
        ("", "a", False),
        ("*", "", True),
        ("*", "anything at all", True),
        ("**", "x", True),
        ("mcp/*", "mcp/request:tools/call", True),
        ("mcp/*", "mcp/", True),
        ("mcp/*", "mcp", False),
        ("*call", "tools/call", True),
        ("a*a", "a", False),
        ("a*a", "aa", True),
        ("ab*ba", "aba", False),
        ("a*b*c", "abc", True),
        ("a*b*c", "acb", False),
        ("*a*a*", "a", False),
        ("*a*a*", "xaxax", True),
        ("a?c", "abc", False),
        ("a?c", "a?c", True),
        ("[ab]", "a", False),
        ("a.c", "abc", False),
        ("\\*", "*", False),
        ("a*", "a\nb", True),
    ],
)
def test_a_star_matches_any_characters_and_everything_else_itself(
    pattern: str, text: str, matches: bool
) -> None:
    assert compile_glob(pattern)(text) is matches
