"""Which items lend each other their words.

A turn of a dialogue is often understood only by what was said before and after it ("yes, on
Friday"), so short items of one thread are also found, faintly, by their neighbours' words. Between
items that merely follow each other this does harm, as measured on shuffled abstracts; so a thread
is one source, or messages without one that follow each other closely. Texts of a source that begin
with a speaker ("Ann: yes, on Friday") are turns too; without a source they may be "Fix: …" and
"Note: …".
"""

import re
from typing import Final

from mcpp_agents.memory.storage.engine import Item
from mcpp_agents.memory.vocabulary import facet_of

# A page needs no neighbours to be understood.
_SHORT_CHARS: Final = 600
_CLOSE_SECONDS: Final = 600.0

_PLACE = re.compile(r"[\W_]*\d+\Z")
_SPEAKER = re.compile(r"[^\W\d_][\w .'@-]{0,40}:\s")


def is_turn(item: Item) -> bool:
    """Whether an item is something that was said in a dialogue."""
    is_spoken = _source(item) and _SPEAKER.match(item.content)
    return bool(is_spoken) or facet_of(item.kind) == "recent_memory"


def thread_of(item: Item) -> str:
    """The name of an item's thread in its scope, empty where it has none."""
    source = _source(item)
    if not is_turn(item) or "://" in source:
        return source
    # So does the number that ends a turn's: D1:3 is the third turn of D1.
    return "messages " + _PLACE.sub("", source)


def _source(item: Item) -> str:
    # What follows a # only says where in the source it stands.
    return (item.source or "").partition("#")[0]


def adjoin(before: Item, after: Item) -> bool:
    """Whether two items that follow each other in a thread lend each other their words."""
    short = len(before.content) <= _SHORT_CHARS and len(after.content) <= _SHORT_CHARS
    if not short or not thread_of(after):
        return False
    return bool(after.source) or after.created_at - before.created_at <= _CLOSE_SECONDS
