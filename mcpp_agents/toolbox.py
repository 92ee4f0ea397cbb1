"""The tools of a pod's participants, under names that a model or an MCP client can call."""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import anyio

from mcpp import (
    CallError,
    ConnectionLostError,
    Kind,
    McppError,
    Message,
    OpenProposal,
    Pod,
    Refused,
    kinds,
)
from mcpp.payloads import Presence
from mcpp.prompts import tool_name

T = TypeVar("T")

# A tool server lists its tools at once; people and listeners never answer. So a caller waits this
# long for a new participant's list, and a later answer still counts. A participant that leaves
# during a call gets the same time to reconnect and answer.
GRACE_SECONDS: Final = 1.0
_LIST_SECONDS: Final = 30.0
_WITHDRAW_SECONDS: Final = 2.0
_MAX_PAGES: Final = 20
_MAX_TOOLS: Final = 500  # per participant; bounds the work that a faulty server can cause
_LIST_CHANGED: Final = str(Kind(kinds.NOTIFICATION, "notifications/tools/list_changed"))


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A participant's tool: `name` is unique in the pod, `definition` is MCP's."""

    name: str
    participant: str
    tool: str
    definition: Mapping[str, Any]


class ParticipantAbsentError(CallError):
    """The called participant is not in the pod, or left before it answered."""


class Toolbox:
    """The tools of all participants. Owns their lists; asks each new participant once."""

    def __init__(self, pod: Pod, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._pod = pod
        self.grace_seconds = grace_seconds
        self._tools: dict[str, list[RemoteTool]] = {}
        self._requests: dict[str, _ListRequest] = {}
        self._silent: set[str] = set()  # did not answer in time, so are not waited for again
        self._calls: dict[anyio.CancelScope, str] = {}

    def observe(self, message: Message) -> bool:
        """Process a message; return whether the available tools may have changed."""
        if message.replayed:
            return False  # older than the lists that we have or will get
        if message.kind == _LIST_CHANGED:
            self._forget(message.sender)
            return True
        if message.kind != kinds.PRESENCE:
            return False
        changes = message.envelope.payload_as(Presence).each()
        for each in changes:
            self._forget(each.participant.id)
            for scope, callee in self._calls.items():
                if each.event == "leave" and callee == each.participant.id:
                    scope.deadline = anyio.current_time() + self.grace_seconds
        return any(each.participant.id != self._pod.me for each in changes)

    def refresh(self) -> None:
        """Request the lists that are missing, so that a later `list_tools` waits less."""
        for participant in self._pod.participants:
            if participant != self._pod.me and participant not in self._requests:
                seconds = 0.0 if participant in self._silent else self.grace_seconds
                request = _ListRequest(anyio.current_time() + seconds)
                self._requests[participant] = request
                self._pod.start_soon(self._request_list, participant, request)

    async def list_tools(self) -> dict[str, RemoteTool]:
        """Return the tools of all present participants by name, in a stable order."""
        self.refresh()
        for participant, request in list(self._requests.items()):
            with anyio.CancelScope(deadline=request.deadline):
                await request.answered.wait()
            if not request.answered.is_set():
                self._silent.add(participant)
        return self._known()

    async def find(self, name: str) -> RemoteTool | None:
        """Return the tool of this name; wait for new participants only if it is not known."""
        return self._known().get(name) or (await self.list_tools()).get(name)

    def _known(self) -> dict[str, RemoteTool]:
        present = sorted(set(self._tools).intersection(self._pod.participants))
        return {tool.name: tool for participant in present for tool in self._tools[participant]}

    def require(self, participant: str, tool: str) -> None:
        """Raise ParticipantAbsentError if a participant that is to be called is not in the pod."""
        if participant not in self._pod.participants:
            raise ParticipantAbsentError(participant, tool, "not in the pod")

    async def call(self, participant: str, tool: str, request: Callable[[], Awaitable[T]]) -> T:
        """Await a call; give up shortly after the called participant leaves the pod.

        Raises ParticipantAbsentError, and whatever `request` raises.
        """
        self.require(participant, tool)
        with anyio.CancelScope() as scope:
            self._calls[scope] = participant
            try:
                return await request()
            finally:
                del self._calls[scope]
        raise ParticipantAbsentError(participant, tool, "left the pod before it answered")

    def _forget(self, participant: str) -> None:
        self._tools.pop(participant, None)
        self._requests.pop(participant, None)

    async def _request_list(self, participant: str, request: "_ListRequest") -> None:
        try:
            tools = await self._list(participant)
        except (CallError, Refused, ConnectionLostError):
            return
        finally:
            request.answered.set()
        self._silent.discard(participant)
        if self._requests.get(participant) is not request:
            return  # the participant left or changed its tools in the meantime
        self._tools[participant] = [
            RemoteTool(tool_name(participant, tool["name"]), participant, tool["name"], tool)
            for tool in tools
            if isinstance(tool, dict) and isinstance(tool.get("name"), str)
        ]

    async def _list(self, participant: str) -> list[Any]:
        tools: list[Any] = []
        params: dict[str, Any] = {}
        for _ in range(_MAX_PAGES):
            page = await self._pod.request(participant, "tools/list", params, timeout=_LIST_SECONDS)
            if not isinstance(page, dict) or not isinstance(page.get("tools"), list):
                break  # invalid; keep the pages before it
            tools += page["tools"]
            if not isinstance(page.get("nextCursor"), str) or len(tools) >= _MAX_TOOLS:
                break
            params = {"cursor": page["nextCursor"]}
        return tools[:_MAX_TOOLS]


async def withdraw_proposals(*proposals: OpenProposal) -> None:
    """Withdraw proposals that are not fulfilled, even while this task is cancelled (P-21)."""
    with suppress(McppError), anyio.move_on_after(_WITHDRAW_SECONDS, shield=True):
        for proposal in proposals:
            if proposal.fulfilled_by is None:
                await proposal.withdraw("the proposer stopped waiting")


@dataclass(frozen=True, slots=True)
class _ListRequest:
    deadline: float
    answered: anyio.Event = field(default_factory=anyio.Event)
