"""Result types: the context pack, in the response schema of the source document, and answers."""

from typing import Any, Literal

import msgspec

from mcpp_agents.memory.requests import BUS_SCHEME


class RelatedItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that is one relation away from a pack item."""

    id: str
    type: str
    name: str
    relationship: str
    direction: Literal["outgoing", "incoming"]
    distance: int = 1


class Quality(msgspec.Struct, frozen=True, kw_only=True):
    """The origin and the dates of an item."""

    origin: str | None
    source: str | None
    url: str | None
    created_at: str | None
    updated_at: str | None
    valid_at: str | None
    project_id: str | None


class PackItem(msgspec.Struct, frozen=True, kw_only=True):
    """A memory in a pack. Its score is 0–1; spec/memory.md (M-21) defines it."""

    id: str
    type: str
    name: str
    content: str
    score: float
    facet: str
    reason: str
    source: str | None
    quality: Quality
    metadata: dict[str, Any]
    related: list[RelatedItem]

    @property
    def is_from_others(self) -> bool:
        """Whether another than its reader or the file's owner wrote it, so it is quoted (M-26)."""
        return self.is_from_pod or self.metadata.get("author") is not None

    @property
    def quoted_author(self) -> str | None:
        """Who wrote it, if it is quoted (M-26)."""
        if not self.is_from_others:
            return None
        return str(self.metadata.get("author") or "a participant")

    @property
    def is_from_pod(self) -> bool:
        """Whether its text was said or stored in a pod."""
        return self.quality.origin == "bus" or (self.source or "").startswith(BUS_SCHEME)


class PackSection(msgspec.Struct, frozen=True, kw_only=True):
    """The items of one facet, best first."""

    facet: str
    title: str
    items: list[PackItem]


class ContextPack(msgspec.Struct, frozen=True, kw_only=True):
    """The memories relevant to a goal, grouped into sections by facet."""

    goal: str
    intent: str
    query: str
    domain: str | None
    project: str | None
    layer: str
    sections: list[PackSection]
    total_items: int
    usage_hint: str
    markdown: str

    @property
    def items(self) -> list[PackItem]:
        """The items of all sections, best first."""
        found = [item for section in self.sections for item in section.items]
        return sorted(found, key=lambda item: -item.score)


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `remember`. `created` is false if the idempotency key was already used."""

    id: str
    kind: str
    facet: str
    project: str | None
    created: bool
    secrets_withheld: bool


class Forgotten(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to `forget`."""

    id: str
    forgotten: bool = True
