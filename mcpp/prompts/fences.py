"""Quotation marks that nobody can forge.

Every line that another participant wrote begins with `> `, and no line of ours does. Nothing in the
text can undo that: whatever a reader might take for a line break becomes one before the lines are
marked, so no tag, no look-alike and no nesting has to be recognised. Around a quotation stand only
words of ours and names reduced to a safe alphabet.
"""

import re
from functools import lru_cache
from typing import Final

# All that `str.splitlines` breaks at, and CR LF as one.
_BREAKS: Final = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
# Controls; marks that turn the direction of reading; tag characters, which no one sees.
_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufeff\U000e0000-\U000e007f]"
)
# `<|im_start|>` and its kin, which a careless chat template takes for its own.
_SPECIAL: Final = re.compile("<(?=[|\uff5c])")
_SUSPECT: Final = re.compile(
    "[^\t\n -\x7e\xa0-\u200d\u2010-\u2027\u202f-\u2065\u206a-\ud7ff\ue000-\ufefe\uff00-\U000dffff"
    "\U000e0080-\U0010ffff]|<[|\uff5c]"
)

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


@lru_cache(maxsize=4096)
def name(text: str | None) -> str:
    """Return a name that can stand outside a quotation: no space, no line, no bracket."""
    return _NOT_NAME.sub("_", text or "")[:MAX_NAME_CHARS] or "_"


@lru_cache(maxsize=4096)
def tool(text: str) -> str:
    """Return a tool's name in the same way, and without what marks a participant."""
    return _NOT_TOOL.sub("_", text)[:MAX_NAME_CHARS] or "_"
