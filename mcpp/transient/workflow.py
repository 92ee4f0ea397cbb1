"""Workflows served step by step; each step declares which tool consumes its output.

The tools stay generic: `search_records` knows nothing of `store_analysis_memory`. The workflow
declares their relationship and sends it to the client with the text of the step.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from mcpp.transient.marks import Hint, with_context_hints

GET_WORKFLOW_STEP: Final[dict[str, Any]] = {
    "name": "get_workflow_step",
    "description": "Return the instructions of a workflow step, or of all steps of its loop.",
    "inputSchema": {
        "type": "object",
        "properties": {"order": {"type": "integer", "minimum": 1}},
        "required": ["order"],
    },
}
"""Definition of the tool, for a server's `tools/list`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStep:
    """One step: the instructions, the tool to call, and the tool that consumes its results."""

    title: str
    text: str = ""
    tool: str | None = None
    consumed_by: str | None = None
    loop_group: str | None = None
    order: int | None = None  # None: one more than the previous step

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "WorkflowStep":
        """Return the step for the source protocol's JSON form (`loopGroup`, `contextHint`)."""
        hint = value.get("contextHint") or {}
        return cls(
            title=value["title"],
            text=value.get("text", ""),
            tool=value.get("tool"),
            consumed_by=hint.get("consumedBy") if hint.get("lifecycle") == "transient" else None,
            loop_group=value.get("loopGroup"),
            order=value.get("order"),
        )


class Workflow:
    """An ordered list of steps, of which `get_workflow_step` returns tool results.

    A server of the package `mcp` or of `fastmcp` serves `decorators.workflow_tool(workflow)`: it
    would send a JSON object as text, without the hints (T-27).
    """

    def __init__(self, steps: Iterable[WorkflowStep | dict[str, Any]]) -> None:
        self._steps: dict[int, WorkflowStep] = {}
        for given in steps:
            step = given if isinstance(given, WorkflowStep) else WorkflowStep.from_json(given)
            order = step.order if step.order is not None else max(self._steps, default=0) + 1
            if order in self._steps:
                raise ValueError(f"duplicate step order {order}")
            if step.consumed_by is not None and step.tool is None:
                raise ValueError(f"step {order} has consumed_by, but no tool")
            self._steps[order] = step
        self._steps = dict(sorted(self._steps.items()))

    def get_workflow_step(self, order: int) -> dict[str, Any]:
        """Return a tool result, as JSON, with the step's text and hints; a loop's come together."""
        step = self._steps.get(order)
        if step is None:
            known = ", ".join(map(str, self._steps)) or "none"
            text = f"There is no step {order}. Steps: {known}."
            return {"content": [{"type": "text", "text": text}], "isError": True}
        group = self._group(order)
        result = {"content": [{"type": "text", "text": self._text(group)}]}
        hints = [
            Hint(member.tool, member.consumed_by, number)
            for number, member in group.items()
            if member.tool is not None and member.consumed_by is not None
        ]
        return with_context_hints(result, hints) if hints else result

    def _group(self, order: int) -> dict[int, WorkflowStep]:
        group = self._steps[order].loop_group
        if group is None:
            return {order: self._steps[order]}
        return {number: step for number, step in self._steps.items() if step.loop_group == group}

    def _text(self, group: dict[int, WorkflowStep]) -> str:
        orders = list(group)
        loop = next(iter(group.values())).loop_group
        numbers = f"Steps {orders[0]}–{orders[-1]}" if len(orders) > 1 else f"Step {orders[0]}"
        lines = [f"## {numbers}" + (f" — loop {loop}, until nothing is left" if loop else "")]
        for number, step in group.items():
            tool = f" (`{step.tool}`)" if step.tool else ""
            lines.append(f"{number}. **{step.title}**{tool}{' ' + step.text if step.text else ''}")
        return "\n".join(lines)
