"""How many pictures a prompt may hold: the newest stay, those before them are named.

An API refuses a request with too many pictures or too large a body, and the next one too, since
what is in the log stays there. The oldest go in steps of a quarter of what may stand: a step takes
a few more than it has to and then holds for a while, so that not every new picture changes the
prompt where the oldest one stood.
"""

from collections import Counter
from typing import Final

from mcpp.prompts.draft import PromptDraft
from mcpp.prompts.entries import PromptEntry

MAX_IMAGES: Final = 20
"""Anthropic takes a hundred, but past twenty only such as have at most 2,000 pixels a side."""

MAX_IMAGES_CHARS: Final = 20_000_000
"""Of base64, all pictures together: a request to Anthropic has at most 32 MB, texts included."""

STEPS: Final = 4


def bound_images(draft: PromptDraft) -> None:
    """Name the oldest pictures of a draft until what is left is taken by every API."""
    shown = [
        (entry, len(image.data))
        for entry in draft.entries
        if entry.sort == "result" and draft.is_intact(entry)
        for image in entry.images()
    ]
    number = _excess(len(shown), MAX_IMAGES)
    chars = _excess(sum(length for _, length in shown), MAX_IMAGES_CHARS)
    named: Counter[PromptEntry] = Counter()
    for entry, length in shown:
        if number <= 0 and chars <= 0:
            break
        named[entry] += 1
        number -= 1
        chars -= length
    for entry, count in named.items():
        draft.name_images(entry, count)


def _excess(found: int, most: int) -> int:
    step = most // STEPS
    return -(-max(0, found - most) // step) * step
