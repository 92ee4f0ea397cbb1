"""Definitions of memory's tools, for MCP and for the bus.

The schemas are generated from the request and result types. The caller is never an argument: call
the tools with `MemoryStore.call` on a store that acts for the caller.
"""

from typing import Any, Final, NamedTuple

import msgspec

from mcpp_agents.memory.pack import ContextPack, Forgotten, Remembered
from mcpp_agents.memory.packing.plan import SynthesisPlan
from mcpp_agents.memory.requests import ForgetRequest, MemoryDraft, PackRequest, PlanRequest


class MemoryTool(NamedTuple):
    """A tool as clients see it in `tools/list`."""

    name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    reads_only: bool = False


def _schema(type: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the JSON Schema of a type, with the type itself at the root."""
    [root], definitions = msgspec.json.schema_components([type], ref_template="#/$defs/{name}")
    schema = dict(definitions.pop(root["$ref"].rpartition("/")[2]))
    return schema | ({"$defs": definitions} if definitions else {})


TOOLS: Final = (
    MemoryTool(
        "context",
        "Compile a context pack: the memories relevant to a goal, grouped by facet. Call it"
        " before you start or resume work.",
        _schema(PackRequest),
        _schema(ContextPack),
        reads_only=True,
    ),
    MemoryTool(
        "remember",
        "Store what future agents should not have to relearn: decisions, gotchas, plans, facts.",
        _schema(MemoryDraft),
        _schema(Remembered),
    ),
    MemoryTool(
        "synthesis_plan",
        "Outline an artifact from what is remembered: sections with cited memories, gaps and"
        " contradictions. Call it before you write a report or a design.",
        _schema(PlanRequest),
        _schema(SynthesisPlan),
        reads_only=True,
    ),
    MemoryTool(
        "forget",
        "Erase one of your own memories.",
        _schema(ForgetRequest),
        _schema(Forgotten),
    ),
)


def text_of(answer: ContextPack | SynthesisPlan | Remembered | Forgotten) -> str:
    """Return an answer as text for a model: Markdown, or the id of an item (M-46)."""
    return answer.markdown if isinstance(answer, ContextPack | SynthesisPlan) else answer.id
