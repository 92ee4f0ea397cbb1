"""What the others in a pod can do, under the names by which a model or an MCP client calls it."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio

from mcpp import Kind, Message, Pod, kinds
from mcpp.errors import CallError, Refused
from mcpp.prompts.names import tool_name

# Somebody who offers tools answers at once; people and other listeners never do.
_PATIENCE_SECONDS: Final = 2.0
# After which one who did not answer is asked again.
_ASK_AGAIN_SECONDS: Final = 30.0
_MAX_PAGES: Final = 20
_CHANGED: Final = str(Kind(kinds.NOTIFICATION, "notifications/tools/list_changed"))


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool of a participant: `name` is ours, `definition` is MCP's."""

    name: str
    participant: str
    tool: str
    definition: Mapping[str, Any]


class Toolbox:
    """Everybody's tools. Owns what was answered; asks only whom it does not know."""

    def __init__(self, pod: Pod, clock: Callable[[], float] = time.monotonic) -> None:
        self._pod = pod
        self._clock = clock
        self._offers: dict[str, list[Offer]] = {}
        self._silent: dict[str, float] = {}

    def hear(self, message: Message) -> bool:
        """Learn from a message who came, left or changed; tell whether the tools may differ."""
        if message.kind == _CHANGED:
            self._forget(message.sender)
            return True
        if message.kind != kinds.PRESENCE or message.replayed:
            return False
        who = message.payload["participant"]["id"]
        self._forget(who)
        return bool(who != self._pod.me)

    async def offers(self) -> dict[str, Offer]:
        """Return the tools of everybody who is here, by our name for them, in a stable order."""
        async with anyio.create_task_group() as tasks:
            for who in self._pod.participants:
                if who != self._pod.me and self._should_ask(who):
                    tasks.start_soon(self._ask, who)
        present = sorted(set(self._offers).intersection(self._pod.participants))
        return {offer.name: offer for who in present for offer in self._offers[who]}

    def _forget(self, who: str) -> None:
        self._offers.pop(who, None)
        self._silent.pop(who, None)

    def _should_ask(self, who: str) -> bool:
        return who not in self._offers and self._silent.get(who, 0.0) <= self._clock()

    async def _ask(self, who: str) -> None:
        try:
            tools = await self._list(who)
        except (CallError, Refused):
            self._silent[who] = self._clock() + _ASK_AGAIN_SECONDS
            return
        self._offers[who] = [
            Offer(tool_name(who, tool["name"]), who, tool["name"], tool)
            for tool in tools
            if isinstance(tool, dict) and isinstance(tool.get("name"), str)
        ]

    async def _list(self, who: str) -> list[Any]:
        tools: list[Any] = []
        params: dict[str, Any] = {}
        for _ in range(_MAX_PAGES):
            page = await self._pod.request(who, "tools/list", params, timeout=_PATIENCE_SECONDS)
            if not isinstance(page, dict) or not isinstance(page.get("tools"), list):
                break  # nonsense: what came before still counts
            tools += page["tools"]
            if not isinstance(page.get("nextCursor"), str):
                break
            params = {"cursor": page["nextCursor"]}
        return tools
