"""Quotes untrusted text so that it cannot imitate the prompt's own structure.

Every line written by another participant begins with `> `, and no line of the prompt's own does.
Everything that a reader could take for a line break is normalised to one before the lines are
marked, so tags, look-alikes and nesting need no detection. Outside a quotation there is only fixed
text and names reduced to a safe alphabet.
"""

import re
from functools import lru_cache
from typing import Final

# Everything at which `str.splitlines` breaks, except LF.
_BREAK: Final = "\r\v\f\x1c-\x1e\x85\u2028\u2029"
# Control characters, bidirectional marks, tag characters, and zero-width fillers, joiners and
# selectors that can hide a message. U+200C and U+200D stay: Indic scripts and Persian need them.
_INVISIBLE: Final = (
    "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_BREAKS: Final = re.compile(f"\r\n|[{_BREAK}]")
_HIDDEN: Final = re.compile(f"[{_INVISIBLE}]")
# `<|im_start|>` and similar, which a careless chat template interprets.
_SPECIAL: Final = re.compile("<(?=[|\uff5c])")
_SUSPECT: Final = re.compile(f"[{_BREAK}{_INVISIBLE}]|<[|\uff5c]")

_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9._:@/~-]")
_NOT_TOOL: Final = re.compile(r"[^A-Za-z0-9._/-]")
MAX_NAME_CHARS: Final = 64


def quote(text: str) -> str:
    """Return the text with `> ` before every line."""
    if text.isascii() and text.isprintable() and "<|" not in text:
        return "> " + text  # fast path for most messages; the general case takes ten times as long
    if _SUSPECT.search(text):
        text = clean_text(text)
    return "> " + text.replace("\n", "\n> ")


def clean_text(text: str) -> str:
    """Return the text with line breaks as LF, without invisible characters and template tokens."""
    text = _HIDDEN.sub("", _BREAKS.sub("\n", text))
    return _SPECIAL.sub("< ", text)


def name(text: str | None) -> str:
    """Return a name that is safe outside a quotation: no spaces, line breaks or brackets."""
    return _name((text or "")[:MAX_NAME_CHARS])


def tool(text: str) -> str:
    """Return a tool's name that is safe outside a quotation and cannot look like a participant."""
    return _tool(text[:MAX_NAME_CHARS])


# The arguments are cut before caching, or senders would control the size of the cache.
@lru_cache(maxsize=4096)
def _name(text: str) -> str:
    return _NOT_NAME.sub("_", text) or "_"


@lru_cache(maxsize=4096)
def _tool(text: str) -> str:
    return _NOT_TOOL.sub("_", text) or "_"
