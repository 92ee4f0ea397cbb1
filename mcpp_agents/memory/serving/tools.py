"""The tools `context`, `remember` and `forget`, the same whichever way they are reached.

Their schemas come from the value objects themselves. Who calls is never an argument: it is the
store that is handed in, already acting for somebody.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from mcpp_agents.memory.errors import InvalidMemory
from mcpp_agents.memory.pack import ContextPack, Forgotten, Remembered
from mcpp_agents.memory.requests import ForgetRequest, MemoryDraft, PackRequest, read
from mcpp_agents.memory.store import MemoryStore

Answer = ContextPack | Remembered | Forgotten


class MemoryTool(NamedTuple):
    """A tool as it is listed to clients."""

    name: str
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any]
    reads_only: bool = False


def call(store: MemoryStore, name: str, arguments: Mapping[str, Any]) -> Answer:
    """Call a tool on behalf of the store's caller.

    Raises:
        MemoryFault: there is no such tool, an argument breaks a rule, or access is denied.
    """
    with store.auditing(name if name in _NAMES else "unknown"):
        return _call(store, name, arguments)


def _call(store: MemoryStore, name: str, arguments: Mapping[str, Any]) -> Answer:
    match name:
        case "context":
            return store.compile(read(arguments, PackRequest))
        case "remember":
            return store.remember_many([read(arguments, MemoryDraft)])[0]
        case "forget":
            return store.forget(read(arguments, ForgetRequest).id)
    raise InvalidMemory(f"Unknown tool: {name}")


def _schema(type: type[msgspec.Struct]) -> dict[str, Any]:
    """The JSON Schema of a value object, with the object itself at the root."""
    [root], definitions = msgspec.json.schema_components([type], ref_template="#/$defs/{name}")
    schema = dict(definitions.pop(root["$ref"].rpartition("/")[2]))
    return schema | ({"$defs": definitions} if definitions else {})


TOOLS: Final = (
    MemoryTool(
        "context",
        "Compile a context pack: the memories that matter for a goal, grouped by facet. Call it"
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
        "forget",
        "Erase a memory of one's own.",
        _schema(ForgetRequest),
        _schema(Forgotten),
    ),
)
_NAMES: Final = frozenset(tool.name for tool in TOOLS)
