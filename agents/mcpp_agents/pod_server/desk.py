"""The pod's own tools for an MCP client: speak, read, see who and what is there, propose."""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Final

from msgspec import Meta

from mcpp import ContextTree, Envelope, Pod, kinds
from mcpp.errors import CallError, NoAnswerError
from mcpp.prompts import PromptBuilder
from mcpp.rpc import ToolResult
from mcpp.tools import Tool, ToolCall
from mcpp_agents.shorthand import read_filter
from mcpp_agents.toolbox import Toolbox

# As much of the log as `pod_read` can look back on.
KEPT_ENVELOPES: Final = 2000
_USUAL_TOKENS: Final = 4000


class Desk:
    """The tools that are about the pod itself. Owns the part of the log that it has heard."""

    def __init__(self, pod: Pod, toolbox: Toolbox) -> None:
        self._pod = pod
        self._toolbox = toolbox
        self.log: deque[Envelope] = deque(maxlen=KEPT_ENVELOPES)
        made: list[Callable[..., Awaitable[Any]]] = [
            self.pod_send, self.pod_read, self.pod_participants, self.pod_contexts, self.pod_propose
        ]  # fmt: skip
        self.tools: Mapping[str, Tool] = {
            tool.name: tool for tool in (Tool.from_function(function) for function in made)
        }

    async def run(self, name: str, arguments: Mapping[str, Any], call: ToolCall) -> ToolResult:
        """Run one of the tools."""
        return await self.tools[name].run(arguments, call)

    async def pod_send(
        self,
        text: str,
        to: list[str] | None = None,
        kind: str = kinds.CHAT,
        context: str | None = None,
        answers: str | None = None,
    ) -> dict[str, str]:
        """Say something in the pod. Everybody sees it; `to` says whom it is meant for."""
        payload = {"thought": text} if kind == kinds.REFLECTION else {"text": text}
        sent = await self._pod.send(
            kind, payload, to=to or None, context=context, correlation_id=answers
        )
        return {"id": sent.id}

    async def pod_read(
        self,
        filter: Annotated[
            str,
            Meta(description="Words that must all hold: main, conclusions, kind:GLOB, from:NAME, "
                 "to:NAME, type:TYPE, context:ID, `not` before one; or a filter as JSON."),
        ] = "everything",
        max_tokens: Annotated[int, Meta(ge=200, le=100_000)] = _USUAL_TOKENS,
        fold: bool = True,
    ) -> str:  # fmt: skip
        """Read what was said in the pod, newest last, within a number of tokens.

        With `fold`, a concluded context stands as its conclusion; context:ID shows it whole.
        """
        wanted = read_filter(filter)
        builder = PromptBuilder(
            self._pod.me,
            filter=wanted,
            contexts="fold" if fold else "include",
            token_budget=max_tokens,
            cache=None,
        )
        return builder.build(list(self.log)).markdown()

    async def pod_participants(self) -> list[dict[str, Any]]:
        """Tell who is in the pod, and which tools each of them offers."""
        offers = (await self._toolbox.offers()).values()
        return [
            {
                "id": who,
                "you": who == self._pod.me,
                "tools": [offer.name for offer in offers if offer.participant == who],
            }
            for who in sorted(self._pod.participants)
        ]

    async def pod_contexts(self) -> str:
        """Show the contexts as a tree: who thinks about what, and what came of it."""
        return ContextTree(self.log).outline()

    async def pod_propose(
        self,
        participant: str,
        tool: str,
        arguments: dict[str, Any] | None = None,
        wait_seconds: Annotated[float, Meta(ge=0, le=600)] = 30.0,
    ) -> ToolResult:
        """Propose a call that somebody else, perhaps a person, must approve; wait for the outcome.

        `tool` is the participant's own name for it, as in PARTICIPANT__TOOL.
        """
        proposal = await self._pod.propose(participant, tool, arguments or {})
        try:
            result: ToolResult = await proposal.result(wait_seconds, until_rejected=True)
        except CallError as error:
            if proposal.fulfilled_by is not None:
                raise
            is_late = isinstance(error, NoAnswerError)
            text = "nobody has decided yet" if is_late else f"{error.problem} (others may differ)"
            return ToolResult([{"type": "text", "text": f"Proposal {proposal.id}: {text}"}])
        return result
