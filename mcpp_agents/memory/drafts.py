"""Conversion of drafts to items, and of items to answers."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import uuid6

from mcpp_agents.memory.access import scope_for
from mcpp_agents.memory.auditing import LogPlace, StoreCaller
from mcpp_agents.memory.errors import AccessDenied
from mcpp_agents.memory.pack import Remembered
from mcpp_agents.memory.redaction import redact_all
from mcpp_agents.memory.requests import MemoryDraft
from mcpp_agents.memory.storage.engine import Item
from mcpp_agents.memory.vocabulary import facet_of


def item_from_draft(
    draft: MemoryDraft,
    caller: StoreCaller,
    *,
    key: str | None,
    now: float,
    metadata: Mapping[str, Any],
) -> Item:
    """Return a new item for a draft that is redacted already.

    Raises:
        AccessDenied: the caller may not write to the draft's project or diary.
    """
    principal = caller.principal
    if principal.diarist is not None and draft.agent_id is None:
        # What only the caller and this memory have heard would be shown to all (M-56).
        raise AccessDenied("A private call stores in a diary only: pass your name as agent_id")
    tasks = tuple(dict.fromkeys(filter(None, (draft.active_task, *draft.task_ids))))
    stated = {"task_ids": list(tasks), "active_task": draft.active_task}
    # As JSON, which is how it is stored and compared.
    facts: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(draft.metadata))
    facts |= {name: value for name, value in stated.items() if value}
    return Item(
        id=f"mem_{uuid6.uuid7().hex}",
        scope=scope_for(principal, project=draft.project, agent=draft.agent_id),
        kind=draft.kind,
        title=draft.title,
        content=draft.content,
        principal=principal.account,
        author=caller.author,
        origin=caller.origin,
        created_at=now,
        updated_at=now,
        domain=draft.domain,
        project=draft.project or (principal.home if draft.agent_id is None else None),
        agent_id=draft.agent_id,
        tags=draft.tags,
        retrieval_keys=tuple(dict.fromkeys((*draft.retrieval_keys, *tasks))),
        source=draft.source,
        url=draft.url,
        valid_at=draft.valid_at,
        idempotency_key=key,
        metadata={**facts, **redact_all(dict(metadata)), **caller.place.metadata()},
    )


def is_repeated(item: Item, stored: Item) -> bool:
    """Return whether an item equals a stored one, apart from its id, times and place (M-02)."""
    return _without_place(item) == _without_place(stored)


def _without_place(item: Item) -> Item:
    places = LogPlace._fields
    metadata = {name: value for name, value in item.metadata.items() if name not in places}
    return replace(item, id="", created_at=0.0, updated_at=0.0, seq=0, metadata=metadata)


def answer_for(item: Item, *, created: bool, secrets_withheld: bool) -> Remembered:
    """Return the answer to `remember` for an item."""
    return Remembered(
        id=item.id,
        kind=item.kind,
        facet=facet_of(item.kind),
        project=item.project,
        created=created,
        secrets_withheld=secrets_withheld,
    )
