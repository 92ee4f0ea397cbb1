"""JSON-RPC as it travels in envelopes: requests, answers, and the results of tools."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered, in MCP's shape."""

    content: list[dict[str, Any]] = field(default_factory=list)
    structured: Any = None
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The text parts of the content, one to a line."""
        return "\n".join(part["text"] for part in self.content if part.get("type") == "text")

    @property
    def value(self) -> Any:
        """The result as a value: the structured one where there is one, else the text."""
        if self.structured is None:
            return self.text
        if isinstance(self.structured, dict) and self.structured.keys() == {"result"}:
            return self.structured["result"]
        return self.structured

    @classmethod
    def from_json(cls, value: Any) -> "ToolResult":
        """Read a `tools/call` result; whatever does not fit counts as text."""
        try:
            wire = msgspec.convert(value, _Wire)
        except msgspec.ValidationError:
            return cls([{"type": "text", "text": msgspec.json.encode(value).decode()}], value)
        return cls(wire.content, wire.structured, wire.is_error, wire.meta)

    def to_json(self) -> dict[str, Any]:
        """Return the result as it travels."""
        value: dict[str, Any] = {"content": self.content}
        if self.structured is not None:
            value["structuredContent"] = self.structured
        if self.is_error:
            value["isError"] = True
        if self.meta:
            value["_meta"] = dict(self.meta)
        return value


class _Wire(msgspec.Struct, kw_only=True):
    content: list[dict[str, Any]] = []
    structured: Any = msgspec.field(default=None, name="structuredContent")
    is_error: bool = msgspec.field(default=False, name="isError")
    meta: dict[str, Any] = msgspec.field(default={}, name="_meta")
