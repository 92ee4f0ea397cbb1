"""Calls that a model requests: made if the agent may make them, otherwise proposed.

The outcome of each call is in the log, from which the next prompt is built.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import anyio

from mcpp import (
    CallError,
    ContextScope,
    EncodeError,
    McppError,
    NoAnswerError,
    Pod,
    Refused,
    ToolResult,
    kinds,
)
from mcpp.errors import TooLargeError
from mcpp.prompts import EXPAND
from mcpp.transient import cut
from mcpp_agents.model.limits import ModelLimits
from mcpp_agents.model.providers import ToolUse
from mcpp_agents.toolbox import ParticipantAbsentError, RemoteTool, Toolbox, withdraw_proposals


class ToolCaller:
    """Makes a model's calls in one pod."""

    def __init__(self, pod: Pod, toolbox: Toolbox, limits: ModelLimits) -> None:
        self._pod = pod
        self._toolbox = toolbox
        self._limits = limits

    async def make_calls(
        self, thinking: ContextScope, uses: Iterable[ToolUse], tools: Mapping[str, RemoteTool]
    ) -> None:
        """Make calls concurrently. Raises the first problem that is not the outcome of a call."""
        problems: list[McppError] = []

        async def attempt(use: ToolUse) -> None:
            try:
                await self._make_call(thinking, use, tools.get(use.name))
            except McppError as error:
                problems.append(error)

        async with anyio.create_task_group() as tasks:
            for use in uses:
                tasks.start_soon(attempt, use)
        if problems:
            raise problems[0]

    async def _make_call(
        self, thinking: ContextScope, use: ToolUse, found: RemoteTool | None
    ) -> None:
        if found is None and use.name != EXPAND:
            await _think(thinking, f"I cannot call {use.name}: there is no such tool.")
            return
        if use.arguments is None:
            await _think(
                thinking, f"I cannot call {use.name}: the arguments are not a JSON object."
            )
            return
        owner, tool = (self._pod.me, EXPAND) if found is None else (found.participant, found.tool)
        arguments, seconds = use.arguments, self._limits.call_seconds
        try:
            await self._toolbox.call(
                owner,
                tool,
                lambda: self._pod.call(owner, tool, arguments, timeout=seconds, context=thinking),
            )
        except (NoAnswerError, ParticipantAbsentError) as error:
            await _think(thinking, f"{error}.")
        except CallError:
            pass  # the error is in the log, as the call's result
        except (EncodeError, TooLargeError) as error:
            await _think(thinking, f"I cannot call {tool}: {error}.")
        except Refused as error:
            if error.code != "capability_violation":
                raise
            await self._propose(thinking, owner, tool, arguments)

    async def _propose(
        self, thinking: ContextScope, owner: str, tool: str, arguments: dict[str, Any]
    ) -> None:
        """Propose a call that this agent has no capability to make."""
        try:
            proposal = await self._pod.propose(owner, tool, arguments, context=thinking)
        except Refused as error:
            if error.code != "capability_violation":
                raise
            await _think(thinking, f"I may neither call nor propose @{owner}'s {tool}.")
            return
        try:
            # Another participant may still overrule a rejection; the questioner need not wait.
            result: ToolResult = await proposal.result(
                self._limits.approval_seconds, until_rejected=True
            )
            outcome = f"was fulfilled by @{proposal.fulfilled_by}: {cut(result.text)}"
        except NoAnswerError:
            by = proposal.fulfilled_by
            outcome = (
                "was not decided"
                if by is None
                else f"was approved by @{by}, but has not been answered yet"
            )
        except CallError as error:
            outcome = f"failed: {error.problem}"
        finally:
            await withdraw_proposals(proposal)
        await _think(thinking, f"My proposal to call @{owner}'s {tool} {outcome}")


async def _think(thinking: ContextScope, thought: str) -> None:
    await thinking.send(kinds.REFLECTION, {"thought": thought})
