"""The tools of a pod's participants, under names that a model or an MCP client can call."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, TypeVar

import anyio
import msgspec

from mcpp import (
    CallError,
    Card,
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

logger = logging.getLogger("mcpp.toolbox")

# A tool server lists its tools at once; people and listeners never answer. So a caller waits this
# long for a new participant's list, and a later answer still counts.
GRACE_SECONDS: Final = 1.0
_LIST_SECONDS: Final = 30.0
_WITHDRAW_SECONDS: Final = 2.0
# Bounds on one participant's list and on all lists together: on the work and the memory that one
# participant can cause (P-45). What is beyond them is not listed.
_MAX_PAGES: Final = 20
_MAX_TOOLS: Final = 500
_MAX_NAME_CHARS: Final = 512  # a longer one does not fit into the kind of a call
_MAX_DEFINITION_BYTES: Final = 64 * 1024
_MAX_LIST_BYTES: Final = 1024 * 1024
_MAX_TOOLBOX_BYTES: Final = 16 * 1024 * 1024
_LIST_CHANGED: Final = str(Kind(kinds.NOTIFICATION, "notifications/tools/list_changed"))


@dataclass(frozen=True, slots=True)
class RemoteTool:
    """A participant's tool: `name` is unique in the pod, `definition` is MCP's.

    `digest` identifies the definition, so that what was found out about it can be kept.
    """

    name: str
    participant: str
    tool: str
    definition: Mapping[str, Any]
    size_bytes: int = 0
    digest: bytes = b""


class Toolbox:
    """The tools of all participants. Owns their lists; asks each new participant once."""

    def __init__(self, pod: Pod, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._pod = pod
        self.grace_seconds = grace_seconds
        self._tools: dict[str, list[RemoteTool]] = {}
        self._requests: dict[str, _ListRequest] = {}
        self._silent: set[str] = set()  # did not answer in time, so are not waited for again
        self._newcomers: set[str] = set()  # may not have announced their cards yet

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
            if each.event == "join":
                self._newcomers.add(each.participant.id)
            else:
                self._newcomers.discard(each.participant.id)
        return any(each.participant.id != self._pod.me for each in changes)

    def refresh(self) -> None:
        """Request the lists of participants without a card, so that `list_tools` waits less.

        Of the others the card says whether there is anything to list. They are asked when their
        tools are needed.
        """
        for participant in self._pod.participants:
            if self._pod.cards.digest(participant) is None:
                self._pod.start_soon(self._request_without_card, participant)

    async def _request_without_card(self, participant: str) -> None:
        if await self._wait_for_card(participant) is None:
            self._request(participant)

    async def _wait_for_card(self, participant: str) -> Card | None:
        """Return a participant's card; a newcomer is given a moment to announce it."""
        wait_seconds = self.grace_seconds / 2 if participant in self._newcomers else 0.0
        card = await self._pod.cards.get(participant, wait_seconds=wait_seconds)
        self._newcomers.discard(participant)
        return card

    def _request(self, participant: str) -> None:
        digest = self._pod.cards.digest(participant)
        known = self._requests.get(participant)
        if known is not None and known.card != digest:
            self._forget(participant)  # it offers something else now
        if participant != self._pod.me and participant not in self._requests:
            seconds = 0.0 if participant in self._silent else self.grace_seconds
            request = _ListRequest(anyio.current_time() + seconds, digest)
            self._requests[participant] = request
            self._pod.start_soon(self._request_list, participant, request)

    async def list_tools(self) -> dict[str, RemoteTool]:
        """Return the tools of all present participants by name, in a stable order."""
        for participant in self._pod.participants:
            self._request(participant)
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

    def _forget(self, participant: str) -> None:
        self._tools.pop(participant, None)
        self._requests.pop(participant, None)

    async def _request_list(self, participant: str, request: "_ListRequest") -> None:
        try:
            tools = await self._list(participant, request)
        except (CallError, Refused, ConnectionLostError):
            return
        finally:
            request.answered.set()
        self._silent.discard(participant)
        if self._requests.get(participant) is not request:
            return  # the participant left or changed its tools in the meantime
        self._tools[participant] = tools
        self._drop_longest_lists()

    def _drop_longest_lists(self) -> None:
        """Drop the longest lists while all of them together are too long."""
        sizes = {
            participant: sum(tool.size_bytes for tool in tools)
            for participant, tools in self._tools.items()
        }
        while sum(sizes.values()) > _MAX_TOOLBOX_BYTES:
            longest = max(sizes, key=lambda participant: sizes[participant])
            logger.warning("the tools of %s are not listed: the pod has too many", longest)
            self._tools[longest] = []
            del sizes[longest]

    async def _list(self, participant: str, request: "_ListRequest") -> list[RemoteTool]:
        """Request the pages of a list, until it ends or a bound is reached.

        Not of a participant whose card says that it has no tools: it need not be asked.
        """
        card = await self._wait_for_card(participant)
        request.card = self._pod.cards.digest(participant)
        if card is not None and not card.may_offer("tools"):
            return []
        tools: list[RemoteTool] = []
        params: dict[str, Any] = {}
        left_bytes = _MAX_LIST_BYTES
        with anyio.move_on_after(_LIST_SECONDS):
            for _ in range(_MAX_PAGES):
                if participant not in self._pod.participants:
                    break  # it has left since it was to be asked
                page = await self._pod.request(
                    participant, "tools/list", params, timeout=_LIST_SECONDS
                )
                if not isinstance(page, dict) or not isinstance(page.get("tools"), list):
                    break  # invalid; keep the pages before it
                for definition in page["tools"]:
                    tool = _read_tool(participant, definition)
                    if tool is None:
                        continue
                    left_bytes -= tool.size_bytes
                    if left_bytes < 0 or len(tools) >= _MAX_TOOLS:
                        logger.warning("%s offers more tools than are listed", participant)
                        return tools
                    tools.append(tool)
                if not isinstance(page.get("nextCursor"), str):
                    break
                params = {"cursor": page["nextCursor"]}
        return tools


def _read_tool(participant: str, definition: Any) -> RemoteTool | None:
    """Return a tool of a list, or None if it cannot be called or described."""
    name = definition.get("name") if isinstance(definition, dict) else None
    if not isinstance(name, str) or len(name) > _MAX_NAME_CHARS:
        return None
    text = msgspec.json.encode(definition, order="sorted")
    if len(text) > _MAX_DEFINITION_BYTES:
        logger.warning("a tool of %s is not listed: %d bytes", participant, len(text))
        return None
    digest = sha256(text).digest()
    return RemoteTool(
        tool_name(participant, name), participant, name, definition, len(text), digest
    )


async def withdraw_proposals(
    *proposals: OpenProposal, reason: str = "the proposer stopped waiting"
) -> None:
    """Withdraw proposals that are not fulfilled, even while this task is cancelled (P-21)."""
    with anyio.move_on_after(_WITHDRAW_SECONDS, shield=True):
        for proposal in proposals:
            if proposal.fulfilled_by is None:
                await _withdraw(proposal, reason)


async def withdraw_old_proposals(proposals: Sequence[OpenProposal]) -> None:
    """Withdraw what an earlier process of an agent proposed: it no longer waits for it."""
    for proposal in proposals:
        if not proposal.is_settled:
            await _withdraw(proposal, "the agent was restarted")


async def _withdraw(proposal: OpenProposal, reason: str) -> None:
    try:
        await proposal.withdraw(reason)
    except McppError as error:
        logger.warning("cannot withdraw a proposal: %s", error)


@dataclass(slots=True)
class _ListRequest:
    deadline: float
    card: str | None  # the digest of the participant's card when it was asked
    answered: anyio.Event = field(default_factory=anyio.Event)
