"""Resources and prompts that a participant offers."""

import base64
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mcpp.agent.threads import call
from mcpp.agent.tools import Tool


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource: a function whose value can be read under a URI."""

    uri: str
    name: str
    mime_type: str
    function: Callable[[], Any]

    def to_json(self) -> dict[str, Any]:
        """Return the resource as `resources/list` describes it."""
        return {
            "uri": self.uri,
            "name": self.name,
            "description": inspect.getdoc(self.function) or "",
            "mimeType": self.mime_type,
        }

    async def read(self) -> dict[str, Any]:
        """Return the contents: a string as text, bytes in base64."""
        value = await call(self.function)
        head = {"uri": self.uri, "mimeType": self.mime_type}
        if isinstance(value, bytes):
            return {**head, "blob": base64.b64encode(value).decode()}
        return {**head, "text": str(value)}


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """A prompt: a function that returns messages. Its arguments are validated like a tool's."""

    tool: Tool

    @classmethod
    def from_function(cls, function: Callable[..., Any]) -> "PromptTemplate":
        """Create a prompt from a function that returns a string or a list of MCP messages."""
        return cls(Tool.from_function(function))

    @property
    def name(self) -> str:
        """The prompt's name."""
        return self.tool.name

    def to_json(self) -> dict[str, Any]:
        """Return the prompt as `prompts/list` describes it."""
        schema = self.tool.input_schema
        arguments = [
            {"name": name, "required": name in schema.get("required", ())}
            for name in schema.get("properties", {})
        ]
        return {"name": self.name, "description": self.tool.description, "arguments": arguments}

    async def get(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the messages. Raises Failure for invalid arguments."""
        value = await call(self.tool.function, **self.tool.read_arguments(arguments))
        if isinstance(value, str):
            value = [{"role": "user", "content": {"type": "text", "text": value}}]
        return {"description": self.tool.description, "messages": value}
