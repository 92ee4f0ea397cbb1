"""Which neighbouring items are indexed together.

A turn of a dialogue often makes sense only with the turns around it ("yes, on Friday"), so short
items of one neighbourhood are also found, with a low weight, by their neighbours' words. Between
items that merely follow each other this does harm, as measured on shuffled abstracts. So a
neighbourhood is one source, or messages without a source that follow each other closely. Texts with
a source that begin with a speaker ("Ann: yes, on Friday") are turns too; without a source they may
be "Fix: …" and "Note: …".
"""

import re
from collections.abc import Sequence
from typing import Final

from mcpp_agents.memory.storage.engine import Item
from mcpp_agents.memory.vocabulary import DEFAULT_KIND, facet_of

# An answer names things by pronoun, two or more turns after their name: the turns before an item
# say what it is about; of those after it, only the next one.
NEAR_BEFORE: Final = 3
# Longer texts make sense without their neighbours.
_MAX_CHARS: Final = 600
_MAX_GAP_SECONDS: Final = 600.0

_TURN_NUMBER = re.compile(r"[\W_]*\d+\Z")
_SPEAKER = re.compile(r"[^\W\d_][\w .'@-]{0,40}:\s")


def is_turn(item: Item) -> bool:
    """Return whether an item is a turn of a dialogue."""
    is_spoken = _source(item) and _SPEAKER.match(item.content)
    # An episode is the kind of whatever was stored without one.
    return bool(is_spoken) or (facet_of(item.kind) == "recent_memory" and item.kind != DEFAULT_KIND)


def speaker_of(item: Item) -> str:
    """Return who speaks a turn, in lower case; empty if that is unknown."""
    spoken = _SPEAKER.match(item.content)
    name = spoken[0].rstrip().removesuffix(":") if spoken else item.author or ""
    return name.casefold()


def spoken_text(item: Item) -> str:
    """Return the text of a turn without its speaker."""
    spoken = _SPEAKER.match(item.content)
    return item.content[spoken.end() :] if spoken else item.content


def neighbourhood_of(item: Item) -> str:
    """Return the name of an item's neighbourhood in its scope, empty if it has none."""
    source = _source(item)
    if not is_turn(item) or "://" in source:
        return source
    # A number at the end is the position in the neighbourhood: D1:3 is the third turn of D1.
    return "messages " + _TURN_NUMBER.sub("", source)


def _source(item: Item) -> str:
    # The part after # is a position in the source.
    return (item.source or "").partition("#")[0]


def before_in_row(earlier: Sequence[Item], item: Item) -> list[Item]:
    """Return the items before one, nearest first, each a neighbour of the next; at most three."""
    found: list[Item] = []
    for each in reversed(earlier[-NEAR_BEFORE:]):
        if not are_neighbours(each, found[-1] if found else item):
            break
        found.append(each)
    return found


def are_neighbours(before: Item, after: Item) -> bool:
    """Return whether two successive items of a neighbourhood are indexed with each other's text."""
    short = len(before.content) <= _MAX_CHARS and len(after.content) <= _MAX_CHARS
    if not short or not neighbourhood_of(after):
        return False
    return bool(after.source) or after.created_at - before.created_at <= _MAX_GAP_SECONDS
