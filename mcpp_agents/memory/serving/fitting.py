"""A pack that must fit in a message: shorter texts first, then fewer items."""

from collections.abc import Sequence
from typing import Final

import msgspec

from mcpp_agents.memory.markdown import render
from mcpp_agents.memory.pack import ContextPack, PackItem

# What is left of each text, step by step.
_EXCERPTS: Final = (4_000, 1_000, 300)


def fit(pack: ContextPack, max_bytes: int) -> ContextPack | None:
    """The pack within a size, and its hint says what was left out; None if nothing of it fits."""
    if _size(pack) <= max_bytes:
        return pack
    best = pack.items
    for chars in _EXCERPTS:
        shorter = [_cut(item, chars) for item in best]
        if _size(fitted := _with(pack, shorter)) <= max_bytes:
            return fitted
    while len(shorter) > 1:
        shorter = shorter[: len(shorter) // 2]
        if _size(fitted := _with(pack, shorter)) <= max_bytes:
            return fitted
    return None


def _size(pack: ContextPack) -> int:
    """Of the pack, and of its Markdown once more beside it."""
    return len(msgspec.json.encode([pack, pack.markdown]))


def _cut(item: PackItem, chars: int) -> PackItem:
    if len(item.content) <= chars:
        return item
    return msgspec.structs.replace(
        item,
        content=item.content[: chars - 1] + "…",
        metadata={**item.metadata, "truncated": True},
    )


def _with(pack: ContextPack, items: Sequence[PackItem]) -> ContextPack:
    kept = {item.id: item for item in items}
    sections = [
        msgspec.structs.replace(section, items=own)
        for section in pack.sections
        if (own := [kept[item.id] for item in section.items if item.id in kept])
    ]
    hint = (
        f"{pack.usage_hint} Shortened to fit a message: {len(items)} of {pack.total_items} items,"
        " long texts cut; a lower `limit` leaves more of each."
    )
    return msgspec.structs.replace(
        pack,
        sections=sections,
        total_items=len(items),
        usage_hint=hint,
        markdown=render(pack.goal, sections, hint),
    )
