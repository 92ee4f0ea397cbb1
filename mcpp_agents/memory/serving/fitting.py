"""Reduction of a pack to the size of a message: shorter texts first, then fewer items (M-36)."""

from collections.abc import Sequence
from typing import Final

import msgspec

from mcpp.tokens import estimate
from mcpp_agents.memory.pack import ContextPack, PackItem
from mcpp_agents.memory.packing.token_budget import render_within

# Maximum length of each text, step by step.
_EXCERPT_CHARS: Final = (4_000, 1_000, 300)


def fit(pack: ContextPack, max_bytes: int) -> ContextPack | None:
    """Return the pack within a size, with a hint on what was left out; None if nothing fits."""
    if _size(pack) <= max_bytes:
        return pack
    best = pack.items
    for chars in _EXCERPT_CHARS:
        shorter = [_cut(item, chars) for item in best]
        if _size(fitted := _with_items(pack, shorter)) <= max_bytes:
            return fitted
    while len(shorter) > 1:
        shorter = shorter[: len(shorter) // 2]
        if _size(fitted := _with_items(pack, shorter)) <= max_bytes:
            return fitted
    return None


def _size(pack: ContextPack) -> int:
    """Return the size of the pack plus its Markdown, which a result carries a second time."""
    return len(msgspec.json.encode([pack, pack.markdown]))


def _cut(item: PackItem, chars: int) -> PackItem:
    if len(item.content) <= chars:
        return item
    return msgspec.structs.replace(
        item,
        content=item.content[: chars - 1] + "…",
        metadata={**item.metadata, "truncated": True},
    )


def _with_items(pack: ContextPack, items: Sequence[PackItem]) -> ContextPack:
    kept = {item.id: item for item in items}
    sections = [
        msgspec.structs.replace(section, items=own)
        for section in pack.sections
        if (own := [kept[item.id] for item in section.items if item.id in kept])
    ]
    hint = (
        f"{pack.usage_hint} Shortened to fit a message: {len(items)} of {pack.total_items} items,"
        " long texts cut; a lower `limit` keeps more of each text."
    )
    return msgspec.structs.replace(
        pack,
        sections=sections,
        total_items=len(items),
        usage_hint=hint,
        # Never longer than it was, which was within the caller's budget.
        markdown=render_within(
            sections, hint, terms=pack.query.split(), budget=estimate(pack.markdown)
        ),
    )
