"""System envelopes: the texts that the gateway itself sends."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import GATEWAY, PROTOCOL
from mcpp_gateway.core.contexts.live_context import LiveContext
from mcpp_gateway.core.history.pages import Found, Page
from mcpp_gateway.core.records import DormantState
from mcpp_gateway.core.sessions import Member

MAX_WELCOME_BYTES: Final = 262_144
# Reserved for everything that is not a list: envelope, pod, limits, position.
_FIXED_BYTES: Final = 4096

# About how much is announced in one envelope, or expires in one tick (C-18).
ANNOUNCED_BYTES: Final = 65_536
_FEW_CONTEXTS: Final = 4

_encode = msgspec.json.Encoder().encode


def system(
    id: str,
    kind: str,
    payload: Mapping[str, Any],
    now: float,
    *,
    correlation_id: str | None = None,
) -> bytes:
    """Return the text of an envelope from the gateway."""
    envelope: dict[str, Any] = {
        "protocol": PROTOCOL,
        "id": id,
        "ts": timestamp(now),
        "from": GATEWAY,
        "kind": kind,
    }
    if correlation_id is not None:
        envelope["correlation_id"] = correlation_id
    envelope["payload"] = payload
    return _encode(envelope)


def welcome(
    you: Member, members: Collection[Member], nodes: Iterable[LiveContext], rest: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the payload of a welcome: ids first, then the rest as far as it fits (G-11)."""
    room = MAX_WELCOME_BYTES - _FIXED_BYTES - you.info_bytes
    infos, room = _participants(members, room)
    more = room < 0 or len(infos) < len(members)
    contexts: list[Raw] = []
    for node in nodes:
        info = _encode({**context_info(node), "messages": node.messages})
        room -= len(info) + 1
        if room < 0:
            more = True
            break
        contexts.append(Raw(info))
    payload = {"you": you.info, "participants": infos, "contexts": contexts, **rest}
    if more:
        payload["more"] = True
    return payload


def announced_together(expired: Sequence[LiveContext]) -> Sequence[Sequence[LiveContext]]:
    """Return expired contexts in groups for one envelope each: a few one by one, many together."""
    if len(expired) > _FEW_CONTEXTS:
        return [expired]
    return [[node] for node in expired]


def expiry(nodes: Sequence[LiveContext]) -> dict[str, Any]:
    """Return the payload that announces expired contexts, one or several (C-11)."""
    if len(nodes) == 1:
        return {"event": "expired", "context": context_info(nodes[0]), **_history(nodes[0])}
    contexts = [{**context_info(node), **_history(node)} for node in nodes]
    return {"event": "expired", "contexts": contexts}


def presence(events: Sequence[tuple[str, Member]]) -> dict[str, Any]:
    """Return the payload that announces who joined and left, one or several (G-33)."""
    entries = [{"event": event, "participant": member.info} for event, member in events]
    return entries[0] if len(entries) == 1 else {"entries": entries}


def card(participant: str, digest: str | None, text: bytes = b"") -> dict[str, Any]:
    """Return the payload that answers a request about a card (G-87)."""
    payload: dict[str, Any] = {"participant": participant}
    if digest is not None:
        payload["digest"] = digest
    if text:
        payload["card"] = Raw(text)
    return payload


def loop(participant: str, hops: int, context: Lineage | None) -> dict[str, Any]:
    """Return the payload that announces a suspected loop (G-84)."""
    payload: dict[str, Any] = {"participant": participant, "hops": hops}
    if context is not None:
        parent = context.ancestors[0] if context.ancestors else None
        payload["context"] = _context(context.id, context.type, parent, None)
    return payload


def _history(node: LiveContext) -> dict[str, Any]:
    return {
        "messages": node.messages,
        "participants": node.participants,
        "started": timestamp(node.started),
        "last": timestamp(node.last),
    }


def revival(state: DormantState) -> dict[str, Any]:
    """Return the payload that announces a revived context, as it was when it expired (C-12)."""
    context = _context(state.id, state.type, state.parent, state.creator)
    return {"event": "revived", "context": context, "messages": state.messages}


def history(page: Page, epoch: str) -> dict[str, Any]:
    """Return the payload of a page of history (H-04)."""
    payload: dict[str, Any] = {
        "entries": [_history_entry(found) for found in page.found],
        "start": page.start,
        "end": page.end,
        "indexed_to": page.indexed_to,
        "epoch": epoch,
    }
    if page.rest is not None:
        payload["next"] = page.rest.cursor
    return payload


def _history_entry(found: Found) -> dict[str, Any]:
    entry = found.entry
    assert entry is not None
    shown: dict[str, Any] = {"position": found.position, "time": found.time}
    if entry.erased:
        shown["erased"] = True
    shown["envelope"] = Raw(entry.text)
    return shown


def context_info(node: LiveContext) -> dict[str, str]:
    """Return a live context as welcomes and expiries describe it."""
    parent = None if node.parent is None else node.parent.id
    return _context(node.id, node.type, parent, node.creator)


def _context(id: str, type: str | None, parent: str | None, creator: str | None) -> dict[str, str]:
    facts = {"id": id, "type": type, "parent": parent, "creator": creator}
    return {name: value for name, value in facts.items() if value is not None}


def timestamp(now: float) -> str:
    """Return a Unix time in the format of an envelope's `ts`."""
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def _participants(members: Collection[Member], room: int) -> tuple[list[Raw], int]:
    """Return the participants as far as they fit, and the bytes that are left.

    A negative number means that something was left out, so nothing else fits either.
    """
    size = sum([member.info_bytes for member in members]) + len(members)
    if size <= room:
        return [member.info for member in members], room - size
    infos: list[Raw] = []
    bare = [_encode({"id": member.settings.id}) for member in members]
    room -= sum(map(len, bare)) + len(bare)
    for id, member in zip(bare, members, strict=True):
        extra = member.info_bytes - len(id)
        if extra <= room:
            room -= extra
            infos.append(member.info)
        else:
            infos.append(Raw(id))
    while room < 0 and infos:
        room += len(bytes(infos.pop())) + 1
    return infos, -1
