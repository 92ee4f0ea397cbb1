"""The resources and prompts of a pod's participants. (Their tools are in the toolbox.)"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import msgspec

from mcpp import Kind, McppError, Message, Pod, kinds
from mcpp.payloads import Presence
from mcpp.prompts import tool_name
from mcpp_agents.mcp_server.definitions import MEMBERS, is_valid_definition

# As for lists of tools (P-45): how long a participant is waited for, and how much is listed of it.
_GRACE_SECONDS: Final = 1.0
_MAX_PAGES: Final = 20
_MAX_OFFERS: Final = 500
_MAX_DEFINITION_BYTES: Final = 64 * 1024
_MAX_LIST_BYTES: Final = 1024 * 1024

RESOURCES: Final = "resources/list"
TEMPLATES: Final = "resources/templates/list"
PROMPTS: Final = "prompts/list"
_CHANGES: Final = {
    str(Kind(kinds.NOTIFICATION, f"notifications/{what}/list_changed")): methods
    for what, methods in (("resources", (RESOURCES, TEMPLATES)), ("prompts", (PROMPTS,)))
}
_CARD_MEMBERS: Final = {RESOURCES: "resources", TEMPLATES: "resources", PROMPTS: "prompts"}
_parameter = re.compile(r"\{[^}]*\}")


@dataclass(frozen=True, slots=True)
class Offer:
    """A resource, a template or a prompt: its key for clients, and its participant's own name."""

    key: str
    participant: str
    name: str
    definition: Mapping[str, Any]
    size_bytes: int


@dataclass(slots=True)
class Offers:
    """Lists of the participants' resources and prompts. Owns those that were requested."""

    pod: Pod
    _lists: dict[tuple[str, str], list[Offer]] = field(default_factory=dict)
    _cards: dict[tuple[str, str], str | None] = field(default_factory=dict)  # digests, when asked

    def observe(self, message: Message) -> tuple[str, ...]:
        """Process a message; return the lists, by their methods, that may have changed."""
        if message.replayed:
            return ()
        if message.kind in _CHANGES:
            self._forget(message.sender, _CHANGES[message.kind])
            return _CHANGES[message.kind]
        if message.kind != kinds.PRESENCE:
            return ()
        for each in message.envelope.payload_as(Presence).each():
            self._forget(each.participant.id, (RESOURCES, TEMPLATES, PROMPTS))
        return (RESOURCES, PROMPTS)

    async def list(self, method: str) -> dict[str, Offer]:
        """Return the entries of all participants by their keys, in a stable order.

        Where two participants offer the same address, the first by name counts.
        """
        missing = [name for name in self.pod.participants if not self._is_known(name, method)]
        with anyio.move_on_after(_GRACE_SECONDS):
            async with anyio.create_task_group() as tasks:
                for name in missing:
                    tasks.start_soon(self._request, name, method)
        found: dict[str, Offer] = {}
        for name in sorted(self.pod.participants):
            for offer in self._lists.get((name, method), ()):
                found.setdefault(offer.key, offer)
        return found

    async def owner_of(self, uri: str) -> str | None:
        """Return the participant that offers an address, as a resource or by a template."""
        known = (await self.list(RESOURCES)).get(uri)
        if known is not None:
            return known.participant
        for template in (await self.list(TEMPLATES)).values():
            if template.name == uri or _matches(template.name, uri):
                return template.participant
        return None

    def _is_known(self, participant: str, method: str) -> bool:
        if participant == self.pod.me:
            return True
        is_same = self._cards.get((participant, method)) == self.pod.cards.digest(participant)
        return is_same and (participant, method) in self._lists

    def _forget(self, participant: str, methods: tuple[str, ...]) -> None:
        for method in methods:
            self._lists.pop((participant, method), None)

    async def _request(self, participant: str, method: str) -> None:
        offers: list[Offer] = []
        params: dict[str, Any] = {}
        left_bytes = _MAX_LIST_BYTES
        try:
            card = await self.pod.cards.get(participant)
            self._cards[participant, method] = self.pod.cards.digest(participant)
            may_offer = card is None or card.may_offer(_CARD_MEMBERS[method])
            for _ in range(_MAX_PAGES if may_offer else 0):
                page = await self.pod.request(participant, method, params, timeout=_GRACE_SECONDS)
                entries = page.get(MEMBERS[method]) if isinstance(page, dict) else None
                for entry in entries if isinstance(entries, list) else ():
                    offer = _read_offer(participant, method, entry)
                    if offer is not None:
                        left_bytes -= offer.size_bytes
                        if left_bytes >= 0 and len(offers) < _MAX_OFFERS:
                            offers.append(offer)
                if not isinstance(page, dict) or not isinstance(page.get("nextCursor"), str):
                    break
                params = {"cursor": page["nextCursor"]}
        except McppError:
            pass  # it offers none, or does not answer
        finally:
            self._lists[participant, method] = offers


def _read_offer(participant: str, method: str, entry: Any) -> Offer | None:
    member = {RESOURCES: "uri", TEMPLATES: "uriTemplate", PROMPTS: "name"}[method]
    name = entry.get(member) if isinstance(entry, dict) else None
    if not isinstance(name, str):
        return None
    key = tool_name(participant, name) if method == PROMPTS else name
    definition = entry | {member: key}
    size_bytes = len(msgspec.json.encode(definition))
    if size_bytes > _MAX_DEFINITION_BYTES or not is_valid_definition(method, definition):
        return None
    return Offer(key, participant, name, definition, size_bytes)


def _matches(template: str, uri: str) -> bool:
    """Return whether an address may come from a template: its fixed parts occur in order."""
    parts = _parameter.split(template)
    place = 0
    for part in parts:
        found = uri.find(part, place)
        if found < 0 or (place == 0 and found != 0):
            return False
        place = found + len(part)
    return not parts[-1] or uri.endswith(parts[-1])
