"""The card of a bridged server: its name, instructions, tools, prompts and resources (P-72)."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from mcp import Client

from mcpp import EncodeError
from mcpp.protocol import rpc
from mcpp.protocol.cards import card_text, fitting_card
from mcpp.protocol.rpc import Failure
from mcpp_agents.bridge.state.tasks import has_tasks

# Bounds on what is listed of a server, and on the time that a list takes.
_MAX_PAGES: Final = 20
_MAX_ENTRIES: Final = {"tools": 1000, "prompts": 500, "resources": 200, "resourceTemplates": 200}
_LIST_SECONDS: Final = 10.0
_DESCRIPTION_CHARS: Final = 1_000
_INSTRUCTIONS_CHARS: Final = (8_000, 1_000, 0)  # as many as fit

# The lists of a server: their methods, and what an entry is known by.
_LISTS: Final = {
    "tools": ("tools/list", "name"),
    "prompts": ("prompts/list", "name"),
    "resources": ("resources/list", "uri"),
    "resourceTemplates": ("resources/templates/list", "uriTemplate"),
}
_CHANGES: Final = {
    "notifications/tools/list_changed": ("tools",),
    "notifications/prompts/list_changed": ("prompts",),
    "notifications/resources/list_changed": ("resources", "resourceTemplates"),
}

Request = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

logger = logging.getLogger("mcpp.bridge")


@dataclass(slots=True)
class ServerCard:
    """What a server offers. Owns its lists, as far as they were read."""

    _lists: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def has_tool(self, name: object) -> bool:
        """Return whether a tool is known."""
        return self._tool(name) is not None

    def requires_task(self, name: object) -> bool:
        """Return whether a tool can be called only as a task (MCP 2025-11-25)."""
        execution = (self._tool(name) or {}).get("execution")
        return isinstance(execution, dict) and execution.get("taskSupport") == "required"

    def _tool(self, name: object) -> dict[str, Any] | None:
        tools = self._lists.get("tools", ())
        return next((tool for tool in tools if tool.get("name") == name), None)

    async def read(self, request: Request, change: str | None = None) -> None:
        """Read the server's lists; after a notification of a change, only those that changed."""
        for member in _LISTS if change is None else _CHANGES[change]:
            method, _ = _LISTS[member]
            self._lists.pop(member, None)
            try:
                with anyio.fail_after(_LIST_SECONDS):
                    self._lists[member] = await _read_list(request, member)
            except TimeoutError:
                logger.warning("the server does not answer %s", method)
            except Failure as failure:
                if failure.code == rpc.METHOD_NOT_FOUND:
                    self._lists[member] = []

    def to_json(self, client: Client | None) -> dict[str, Any]:
        """Return the card of a server that is open, with as much of the texts as fits."""
        card = self._offers()
        if client is None:
            return card
        if has_tasks(client):
            card["answers"] = ["tasks"]
        about = {"description": _description(client)} if client.server_info else {}
        for limit in _INSTRUCTIONS_CHARS:
            instructions = (client.instructions or "")[:limit]
            full = about | ({"instructions": instructions} if instructions else {}) | card
            try:
                card_text(full)
            except EncodeError:
                continue
            return full
        return card

    def _offers(self) -> dict[str, Any]:
        offers: dict[str, list[dict[str, str]]] = {}
        has_more = False
        for member, (_, key) in _LISTS.items():
            found = self._lists.get(member)
            if found is None:
                has_more = True
                continue
            has_more |= len(found) > _MAX_ENTRIES[member]
            name, own_key = (member, key) if key == "name" else ("resources", "uri")
            listed = offers.setdefault(name, [])
            for entry in found[: _MAX_ENTRIES[member]]:
                if isinstance(value := entry.get(key), str):
                    listed.append({own_key: value, "description": _text(entry)})
        used = {name: listed for name, listed in offers.items() if listed or name == "tools"}
        return fitting_card(used) | ({"more": True} if has_more else {})


async def _read_list(request: Request, member: str) -> list[dict[str, Any]]:
    method, _ = _LISTS[member]
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    for _ in range(_MAX_PAGES):
        page = await request(method, params)
        entries = page.get(member)
        found += [each for each in _sequence(entries) if isinstance(each, dict)]
        if not isinstance(page.get("nextCursor"), str) or len(found) > _MAX_ENTRIES[member]:
            break
        params = {"cursor": page["nextCursor"]}
    return found


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _description(client: Client) -> str:
    info = client.server_info
    assert info is not None
    named = f"MCP server {info.title or info.name} {info.version}".strip()
    text = f"{named}: {info.description}" if info.description else named
    return text[:_DESCRIPTION_CHARS]


def _text(entry: Mapping[str, Any]) -> str:
    text = entry.get("description") or entry.get("title") or entry.get("name")
    return text if isinstance(text, str) else ""
