"""One question to a framework's agent: what it is offered, and what the pod sees of its work."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import msgspec

from mcpp import (
    CallError,
    ContextScope,
    McppError,
    Message,
    NoAnswerError,
    OpenProposal,
    Refused,
    ToolResult,
    kinds,
)
from mcpp.transient import cut
from mcpp_agents.toolbox import RemoteTool, withdraw_proposals

__all__ = ["Approval", "FrameworkTurn", "PodTool", "Talk"]

CALL_SECONDS: Final = 300.0
APPROVAL_SECONDS: Final = 600.0
_MAX_MARKED: Final = 1_000


@dataclass(slots=True)
class Talk:
    """A conversation: the framework's own history of it, and marked results by call."""

    id: str
    history: Any = None
    marked: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    def mark(self, call_id: str, result: Mapping[str, Any]) -> None:
        """Keep a result with its marks; the oldest are forgotten."""
        self.marked[call_id] = result
        if len(self.marked) > _MAX_MARKED:
            del self.marked[next(iter(self.marked))]


class Approval:
    """A call that waits for consent. Owns the decision, and the result for who approved it."""

    def __init__(self, tool: str) -> None:
        self.tool = tool
        self.is_approved = False
        self.reason = "it was not decided in time"
        self.decided = anyio.Event()
        self.result: ToolResult | None = None
        self.finished = anyio.Event()

    def decide(self, is_approved: bool, reason: str = "") -> None:
        """Set the decision."""
        self.is_approved, self.reason = is_approved, reason
        self.decided.set()

    def finish(self, result: ToolResult) -> None:
        """Set the result of the call."""
        self.result = result
        self.finished.set()


class FrameworkTurn:
    """The work on one question. Owns the text that is shown, and the open approvals."""

    def __init__(
        self, question: Message, thinking: ContextScope, talk: Talk, tools: list[RemoteTool]
    ) -> None:
        self.question = question
        self.talk = talk
        self.out = question.stream()
        self.approvals: dict[str, Approval] = {}  # by the proposals' ids
        self._running: set[anyio.CancelScope] = set()
        self.tools = [PodTool(thinking, tool, self._running) for tool in tools]
        self._names = {tool.name for tool in self.tools}
        self._thinking = thinking

    @property
    def text(self) -> str:
        """The question."""
        return self.question.text

    async def write(self, text: str) -> None:
        """Show a piece of the answer while it is written."""
        if text:
            await self.out.write(text)

    async def think(self, thought: str) -> None:
        """Tell a thought."""
        if thought.strip():
            await self._thinking.send(kinds.REFLECTION, {"thought": cut(thought)})

    async def called(self, tool: str, arguments: Any) -> None:
        """Tell a call of the agent: what was written before it was a thought, not the answer.

        Calls of the pod's tools are in the log by themselves.
        """
        text = self.out.text
        if text:
            await self.out.end()
            self.out = self.question.stream()
            await self.think(text)
        if tool not in self._names:
            given = arguments if isinstance(arguments, str) else _json(arguments)
            await self.think(f"I call {tool}({given}).")

    async def returned(self, tool: str, text: str) -> None:
        """Tell the result of one of the agent's own tools."""
        if tool not in self._names:
            await self.think(f"{tool} returned {text}")
        for approval in self.approvals.values():
            if approval.tool == tool and approval.is_approved and not approval.finished.is_set():
                approval.finish(ToolResult([{"type": "text", "text": text}]))
                break

    async def approve(self, tool: str, arguments: Mapping[str, Any]) -> Approval:
        """Propose a call of one of the agent's own tools, and wait for the decision."""
        approval = Approval(tool)
        pod = self._thinking.pod
        proposal = await self._thinking.propose(pod.me, tool, arguments)
        self.approvals[proposal.id] = approval

        async def hear() -> None:
            try:
                await proposal.result(APPROVAL_SECONDS, until_rejected=True)
            except NoAnswerError:
                approval.decide(False, "it was not decided in time")
            except McppError as error:
                problem = error.problem if isinstance(error, CallError) else str(error)
                approval.decide(False, problem)

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(hear)
                await approval.decided.wait()
                tasks.cancel_scope.cancel()
        finally:
            await withdraw_proposals(proposal)
        return approval

    async def stop_when_cancelled(self) -> None:
        """Wait until this task is cancelled, then end the calls of the pod's tools.

        A framework that runs tools in tasks of its own waits for them even if it is cancelled.
        """
        try:
            await anyio.sleep_forever()
        finally:
            for scope in list(self._running):
                scope.cancel()

    def end(self) -> None:
        """Let no one wait for a result that does not come."""
        for approval in self.approvals.values():
            if not approval.finished.is_set():
                text = "the agent has not used it"
                approval.finish(ToolResult([{"type": "text", "text": text}], is_error=True))


class PodTool:
    """A tool of another participant, for a framework's agent."""

    def __init__(
        self, thinking: ContextScope, tool: RemoteTool, running: set[anyio.CancelScope]
    ) -> None:
        self.name = tool.name
        given = tool.definition.get("description")
        described = given if isinstance(given, str) else ""
        self.description = f"{described} (@{tool.participant})".strip()
        schema = tool.definition.get("inputSchema")
        is_object = isinstance(schema, dict) and schema.get("type") == "object"
        self.schema: dict[str, Any] = dict(schema or {}) if is_object else {"type": "object"}
        self.schema.setdefault("properties", {})
        self._thinking = thinking
        self._tool = tool
        self._running = running

    async def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        """Call it, or propose the call if the agent may not make it. Failures are results."""
        result = ToolResult([{"type": "text", "text": "cancelled"}], is_error=True)
        with anyio.CancelScope() as scope:
            self._running.add(scope)
            try:
                result = await self._call(arguments)
            finally:
                self._running.discard(scope)
        return result

    async def _call(self, arguments: Mapping[str, Any]) -> ToolResult:
        owner, tool = self._tool.participant, self._tool.tool
        try:
            return await self._thinking.call(owner, tool, arguments, timeout=CALL_SECONDS)
        except CallError as error:
            return _failed(error)
        except Refused as error:
            if error.code != "capability_violation":
                return _failed(error)
        proposal: OpenProposal | None = None
        try:
            proposal = await self._thinking.propose(owner, tool, arguments)
            result = await proposal.result(APPROVAL_SECONDS, until_rejected=True)
        except McppError as error:
            return _failed(error)
        finally:
            if proposal is not None:
                await withdraw_proposals(proposal)
        assert isinstance(result, ToolResult)
        return result


def _failed(error: McppError) -> ToolResult:
    return ToolResult([{"type": "text", "text": str(error)}], is_error=True)


def _json(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
