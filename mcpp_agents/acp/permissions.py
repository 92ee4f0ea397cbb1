"""Permissions: what an agent asks before it acts is proposed in the pod, and a person decides.

The proposal is a call of the bridge's own tool `allow`. Any participant but the agent
itself that may make that call can fulfil the proposal; a rejection rejects. Its arguments name the
request and the option; a person who sends the call with the option `always` chooses the agent's
option for that.
Which option is which is decided by its kind; the names are the agent's own.
"""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

import anyio
from acp.schema import PermissionOption

from mcpp import Gap, McppError, Message, OpenProposal, Refused, ToolCall, kinds
from mcpp.errors import TooLargeError
from mcpp.payloads import Reject
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.acp.descriptions import ToolCallState, below, one_line, shorten
from mcpp_agents.acp.limits import AcpLimits
from mcpp_agents.acp.turn import Turn
from mcpp_agents.toolbox import withdraw_proposals

ALLOW: Final = "allow"
_ALLOWED: Final = {"allow_once": "once", "allow_always": "always"}
_REJECTED: Final = ("reject_once", "reject_always")
_MAX_OPEN: Final = 16  # of one question
_EDITED: Final = "edited"  # the inspector's rejection of what it has sent with other arguments


@dataclass(slots=True)
class _Decision:
    """A request for permission that is open. Owns what was decided."""

    turn: Turn
    options: dict[str, str]  # the agent's option ids by ours: once, always
    proposal: OpenProposal | None = None
    option: str | None = None  # ours; None is a rejection
    text: str = ""
    is_cancelled: bool = False
    made: anyio.Event = field(default_factory=anyio.Event)

    def make(self, option: str | None, text: str) -> None:
        if not self.made.is_set():
            self.option, self.text = option, text
            self.made.set()


class Permissions:
    """The requests of one agent for permission. Owns those that are open.

    Args:
        own: the names of the agent's own participants, which cannot decide.
        approvers: the participants that can decide; None for all others.
        folder: the agent's working folder.
        limits: how long to wait.
    """

    def __init__(
        self,
        own: Collection[str],
        approvers: Collection[str] | None,
        folder: PurePath,
        limits: AcpLimits,
    ) -> None:
        self._own = own
        self._approvers = approvers
        self._folder = folder
        self._limits = limits
        self._open: dict[str, _Decision] = {}  # by the request's id

    async def ask(
        self, turn: Turn, call: ToolCallState, options: Sequence[PermissionOption]
    ) -> str | None:
        """Ask the pod, and return the id of the agent's option that was chosen.

        None if the agent has no option for the decision, or the question was cancelled.
        """
        by_kind: dict[str, str] = {each.kind: each.option_id for each in reversed(options)}
        # *Once* comes first, since it is proposed; Claude Code and Gemini CLI list *always* first.
        allowed = {ours: by_kind[kind] for kind, ours in _ALLOWED.items() if kind in by_kind}
        decision = _Decision(turn, allowed)
        if not allowed:
            decision.make(None, "Not allowed, since the agent gave no option for it")
        elif turn.waits_for_person >= _MAX_OPEN:
            decision.make(None, "Not allowed, since too many requests are open")
        else:
            await self._propose(turn, call, decision)
        if decision.is_cancelled:
            return None
        is_allowed = decision.option is not None
        await turn.note_decision(decision.text, call, is_allowed=is_allowed)
        if decision.option is not None:
            return allowed[decision.option]
        return next((by_kind[kind] for kind in _REJECTED if kind in by_kind), None)

    async def _propose(self, turn: Turn, call: ToolCallState, decision: _Decision) -> None:
        request = secrets.token_hex(4)
        arguments: dict[str, Any] = {"request": request, "option": next(iter(decision.options))}
        arguments |= call.action(self._limits.shown_chars)
        self._open[request] = decision
        turn.waits_for_person += 1
        try:
            decision.proposal = await turn.thinking.propose(
                turn.question.pod.me,
                ALLOW,
                arguments,
                reason=self._reason(turn, call),
                preview=call.preview(self._limits.shown_chars),
            )
            if decision.proposal.rejections:  # before we knew the proposal's id
                self._reject(decision, *decision.proposal.rejections[-1])
            with anyio.move_on_after(self._limits.approval_seconds):
                await decision.made.wait()
            decision.make(None, "Not allowed, since there was no decision in time")
        except (Refused, TooLargeError) as error:
            decision.make(None, f"Not allowed, since it cannot be proposed ({error})")
        finally:
            del self._open[request]
            turn.waits_for_person -= 1
            turn.active_at = anyio.current_time()
            if decision.proposal is not None:
                await withdraw_proposals(decision.proposal, reason=decision.text or "cancelled")

    def cancel(self, turn: Turn) -> None:
        """Withdraw what is open of a question that is no longer answered."""
        for decision in self._open.values():
            if decision.turn is turn and not decision.made.is_set():
                decision.is_cancelled = True
                decision.make(None, "cancelled")

    def observe(self, item: Message | Gap) -> None:
        """Process a message of the log: a rejection decides."""
        if isinstance(item, Gap):
            if item.lost_log:
                for decision in self._open.values():
                    decision.make(None, "Not allowed, since the gateway has lost its log")
        elif item.kind == kinds.REJECT and not item.replayed:
            for decision in self._open.values():
                proposal = decision.proposal
                if proposal is not None and proposal.id == item.correlation_id:
                    try:
                        given = item.payload_as(Reject)
                    except McppError:
                        return
                    self._reject(decision, item.sender, given)

    async def serve(self, params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        """Serve `tools/call`: a participant allows a request. Raises Failure for any other call."""
        arguments = params.get("arguments")
        given = arguments if isinstance(arguments, dict) else {}
        decision = self._open.get(str(given.get("request")))
        if params.get("name") != ALLOW or decision is None:
            raise Failure(rpc.INVALID_PARAMS, "no such request for permission is open")
        if not self._may_decide(call.sender):
            raise Failure(rpc.INVALID_REQUEST, f"{call.sender} cannot decide on this agent's work")
        option = given.get("option")
        if option not in decision.options:
            known = ", ".join(decision.options)
            raise Failure(rpc.INVALID_PARAMS, f"the option has to be one of: {known}")
        if decision.made.is_set():
            raise Failure(rpc.CLOSED_PROPOSAL, "already decided")
        decision.make(option, f"@{call.sender} allowed it ({option})")
        return {"content": [{"type": "text", "text": f"allowed ({option})"}]}

    def _reject(self, decision: _Decision, sender: str, given: Reject) -> None:
        if given.reason != _EDITED and self._may_decide(sender):
            decision.make(
                None, f"@{sender} rejected it ({shorten(given.text or given.reason, 500)})"
            )

    def _may_decide(self, participant: str) -> bool:
        if participant in self._own:
            return False
        return self._approvers is None or participant in self._approvers

    def _reason(self, turn: Turn, call: ToolCallState) -> str:
        """Return what the agent wants to do, for the person that decides."""
        lines = [f"{turn.question.pod.me} asks: {call.name}"]
        if call.command is not None:
            lines.append(shorten(call.command, self._limits.shown_chars))
        paths = dict.fromkeys([*call.paths, *(each.path for each in call.changes)])
        outside = [path for path in paths if not self._is_inside(path)]
        # Codex names no file in its title.
        inside = [one_line(below(turn.folder, path)) for path in paths if path not in outside]
        unnamed = [path for path in inside if path not in call.name]
        if unnamed:
            lines.append(f"Files: {shorten(', '.join(unnamed), 1000)}")
        if outside:
            lines.append(f"Outside of its folder: {shorten(', '.join(outside), 1000)}")
        return "\n".join(lines)

    def _is_inside(self, path: str) -> bool:
        pure = self._folder / path
        return ".." not in pure.parts and pure.is_relative_to(self._folder)
