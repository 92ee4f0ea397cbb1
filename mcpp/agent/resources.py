"""What a participant offers besides tools: resources to read and prompts to get."""

import base64
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcpp.agent.threads import call
from mcpp.agent.tools import Tool


@dataclass(frozen=True, slots=True)
class Resource:
    """Something to read under a URI."""

    uri: str
    name: str
    mime_type: str
    function: Callable[[], Any]

    def to_json(self) -> dict[str, Any]:
        """Return the resource as `resources/list` tells it."""
        return {
            "uri": self.uri,
            "name": self.name,
            "description": inspect.getdoc(self.function) or "",
            "mimeType": self.mime_type,
        }

    async def read(self) -> dict[str, Any]:
        """Return its contents: a text as it is, bytes in base64."""
        value = await call(self.function)
        head = {"uri": self.uri, "mimeType": self.mime_type}
        if isinstance(value, bytes):
            return {**head, "blob": base64.b64encode(value).decode()}
        return {**head, "text": str(value)}


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A template of messages. Its arguments are read as a tool's are."""

    tool: Tool

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> "PromptTemplate":
        """Make a prompt of a function that returns a text or a list of MCP messages."""
        return cls(Tool.from_function(function))

    @property
    def name(self) -> str:
        """The prompt's name."""
        return self.tool.name

    def to_json(self) -> dict[str, Any]:
        """Return the prompt as `prompts/list` tells it."""
        schema = self.tool.input_schema
        arguments = [
            {"name": name, "required": name in schema.get("required", ())}
            for name in schema.get("properties", {})
        ]
        return {"name": self.name, "description": self.tool.description, "arguments": arguments}

    async def get(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the messages. Raises Failure for arguments that do not fit."""
        value = await call(self.tool.function, **self.tool.read_arguments(arguments))
        if isinstance(value, str):
            value = [{"role": "user", "content": {"type": "text", "text": value}}]
        return {"description": self.tool.description, "messages": value}
