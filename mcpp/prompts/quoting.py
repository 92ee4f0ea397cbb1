"""Quotation marks that nobody can forge.

Every line that another participant wrote begins with `> `, and no line of ours does. Nothing in the
text can undo that: whatever a reader might take for a line break becomes one before the lines are
marked, so no tag, no look-alike and no nesting has to be recognised. Around a quotation stand only
words of ours and names reduced to a safe alphabet.
"""

import re
from functools import lru_cache
from typing import Final

# All that `str.splitlines` breaks at but LF, and CR LF as one.
_BREAK: Final = "\r\v\f\x1c-\x1e\x85\u2028\u2029"
# Controls; marks that turn the direction of reading; fillers, joiners and selectors that take no
# place, in which a message can be hidden; tag characters. U+200C and U+200D stay: scripts of India
# and Persia are misspelt without them.
_UNSEEN: Final = (
    "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0"
    "\ufff0-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_BREAKS: Final = re.compile(f"\r\n|[{_BREAK}]")
_HIDDEN: Final = re.compile(f"[{_UNSEEN}]")
# `<|im_start|>` and its kin, which a careless chat template takes for its own.
_SPECIAL: Final = re.compile("<(?=[|\uff5c])")
_SUSPECT: Final = re.compile(f"[{_BREAK}{_UNSEEN}]|<[|\uff5c]")

_NOT_NAME: Final = re.compile(r"[^A-Za-z0-9._:@/~-]")
_NOT_TOOL: Final = re.compile(r"[^A-Za-z0-9._/-]")
MAX_NAME_CHARS: Final = 64


def quote(text: str) -> str:
    """Return the text with `> ` before every line, whatever its author takes for a line."""
    if text.isascii() and text.isprintable() and "<|" not in text:
        return "> " + text  # most of what is said; the rest takes ten times as long
    if _SUSPECT.search(text):
        text = clean(text)
    return "> " + text.replace("\n", "\n> ")


def clean(text: str) -> str:
    """Return the text with one kind of line break and without what no reader sees."""
    text = _HIDDEN.sub("", _BREAKS.sub("\n", text))
    return _SPECIAL.sub("< ", text)


def name(text: str | None) -> str:
    """Return a name that can stand outside a quotation: no space, no line, no bracket."""
    return _name((text or "")[:MAX_NAME_CHARS])


def tool(text: str) -> str:
    """Return a tool's name in the same way, and without what marks a participant."""
    return _tool(text[:MAX_NAME_CHARS])


# Cut before they are remembered, or a cache would keep whatever length others choose.
@lru_cache(maxsize=4096)
def _name(text: str) -> str:
    return _NOT_NAME.sub("_", text) or "_"


@lru_cache(maxsize=4096)
def _tool(text: str) -> str:
    return _NOT_TOOL.sub("_", text) or "_"
