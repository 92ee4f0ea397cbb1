"""What the others in a pod can do, under the names by which a model or an MCP client calls it."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio

from mcpp import Kind, McppError, Message, OpenProposal, Pod, kinds
from mcpp.errors import CallError, ConnectionLostError, Refused
from mcpp.prompts import tool_name

T = TypeVar("T")

# Somebody who offers tools answers at once; people and other listeners never do. Nobody waits
# longer than this for a newcomer's answer, but one that comes later still counts. And whoever
# leaves in the middle of a call may have lost only its line: then it is back with the answer.
PATIENCE_SECONDS: Final = 1.0
_ANSWER_SECONDS: Final = 30.0
_TAKE_BACK_SECONDS: Final = 2.0
_MAX_PAGES: Final = 20
_MAX_TOOLS: Final = 500  # of one participant: more than any server has, and quickly looked through
_CHANGED: Final = str(Kind(kinds.NOTIFICATION, "notifications/tools/list_changed"))


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool of a participant: `name` is ours, `definition` is MCP's."""

    name: str
    participant: str
    tool: str
    definition: Mapping[str, Any]


class GoneError(CallError):
    """Whoever was asked is not in the pod, or has left before it answered."""


class Toolbox:
    """Everybody's tools. Owns what was answered, and who is waited for; asks each newcomer once."""

    def __init__(self, pod: Pod, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._pod = pod
        self.patience_seconds = patience_seconds
        self._offers: dict[str, list[Offer]] = {}
        self._asked: dict[str, _Asking] = {}
        self._silent: set[str] = set()  # who let us wait in vain is not waited for again
        self._waiting: dict[anyio.CancelScope, str] = {}

    def hear(self, message: Message) -> bool:
        """Learn from a message who came, left or changed; tell whether the tools may differ."""
        if message.replayed:
            return False  # it is older than what we were answered, or will be
        if message.kind == _CHANGED:
            self._forget(message.sender)
            return True
        if message.kind != kinds.PRESENCE:
            return False
        who = message.payload["participant"]["id"]
        self._forget(who)
        if message.payload["event"] == "leave":
            for scope, asked in self._waiting.items():
                if asked == who:
                    scope.deadline = anyio.current_time() + self.patience_seconds
        return bool(who != self._pod.me)

    def ask(self) -> None:
        """Ask everybody who was not asked yet: whoever needs the tools soon waits less for them."""
        for who in self._pod.participants:
            if who != self._pod.me and who not in self._asked:
                seconds = 0.0 if who in self._silent else self.patience_seconds
                self._asked[who] = asking = _Asking(anyio.current_time() + seconds)
                self._pod.start_soon(self._ask, who, asking)

    async def offers(self) -> dict[str, Offer]:
        """Return the tools of everybody who is here, by our name for them, in a stable order."""
        self.ask()
        for who, asking in list(self._asked.items()):
            with anyio.move_on_at(asking.patience_ends):
                await asking.answered.wait()
            if not asking.answered.is_set():
                self._silent.add(who)
        return self._known()

    async def offer(self, name: str) -> Offer | None:
        """Return the tool of this name of ours; who is new is waited for only to find it."""
        return self._known().get(name) or (await self.offers()).get(name)

    def _known(self) -> dict[str, Offer]:
        present = sorted(set(self._offers).intersection(self._pod.participants))
        return {offer.name: offer for who in present for offer in self._offers[who]}

    def expect(self, who: str, tool: str) -> None:
        """Make sure that somebody who is to be asked is here. Raises GoneError."""
        if who not in self._pod.participants:
            raise GoneError(who, tool, "not in the pod")

    async def call(self, who: str, tool: str, asking: Callable[[], Awaitable[T]]) -> T:
        """Make a call that ends soon after whoever is asked has left: nobody else would answer it.

        Raises GoneError, and what `asking` raises.
        """
        self.expect(who, tool)
        with anyio.CancelScope() as scope:
            self._waiting[scope] = who
            try:
                return await asking()
            finally:
                del self._waiting[scope]
        raise GoneError(who, tool, "left the pod before it answered")

    def _forget(self, who: str) -> None:
        self._offers.pop(who, None)
        self._asked.pop(who, None)

    async def _ask(self, who: str, asking: "_Asking") -> None:
        try:
            tools = await self._list(who)
        except (CallError, Refused, ConnectionLostError):
            return
        finally:
            asking.answered.set()
        self._silent.discard(who)
        if self._asked.get(who) is not asking:
            return  # it has left or changed meanwhile
        self._offers[who] = [
            Offer(tool_name(who, tool["name"]), who, tool["name"], tool)
            for tool in tools
            if isinstance(tool, dict) and isinstance(tool.get("name"), str)
        ]

    async def _list(self, who: str) -> list[Any]:
        tools: list[Any] = []
        params: dict[str, Any] = {}
        for _ in range(_MAX_PAGES):
            page = await self._pod.request(who, "tools/list", params, timeout=_ANSWER_SECONDS)
            if not isinstance(page, dict) or not isinstance(page.get("tools"), list):
                break  # nonsense: what came before still counts
            tools += page["tools"]
            if not isinstance(page.get("nextCursor"), str) or len(tools) >= _MAX_TOOLS:
                break
            params = {"cursor": page["nextCursor"]}
        return tools[:_MAX_TOOLS]


async def take_back(*proposals: OpenProposal) -> None:
    """Withdraw what we proposed and wait for no longer, be it that we are cancelled (P-21)."""
    with suppress(McppError), anyio.move_on_after(_TAKE_BACK_SECONDS, shield=True):
        for proposal in proposals:
            if proposal.fulfilled_by is None:
                await proposal.withdraw("nobody waits for it any more")


@dataclass(frozen=True, slots=True)
class _Asking:
    patience_ends: float
    answered: anyio.Event = field(default_factory=anyio.Event)
