"""Resources and prompts that a participant offers."""

import base64
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from mcpp.agent.threads import call
from mcpp.agent.tools import Tool

_PARAMETER: Final = re.compile(r"\{(\+?)([A-Za-z_][A-Za-z0-9_]*)\}")
_MAX_URI: Final = 8192


class Resource:
    """A function whose value can be read under a URI, or under every URI of a template."""

    def __init__(self, uri: str, name: str, mime_type: str, function: Callable[..., Any]) -> None:
        """Raises TypeError if the function does not take the parameters of the template."""
        self.uri = uri
        self.name = name
        self.mime_type = mime_type
        self.function = function
        self._pattern = _compile(uri)
        wanted = set(self._pattern.groupindex)
        taken = {
            each.name: each.default is each.empty
            for each in inspect.signature(function).parameters.values()
        }
        required = {parameter for parameter, is_required in taken.items() if is_required}
        if not required <= wanted <= taken.keys():
            raise TypeError(
                f"resource {uri}: the function has to take {', '.join(sorted(wanted)) or 'nothing'}"
            )

    @property
    def is_template(self) -> bool:
        """Whether the address has parameters."""
        return bool(self._pattern.groupindex)

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the parameters in a URI, None if it is not one of this resource."""
        if len(uri) > _MAX_URI:
            return None
        found = self._pattern.fullmatch(uri)
        return found and {name: unquote(value) for name, value in found.groupdict().items()}

    def to_json(self) -> dict[str, Any]:
        """Return the resource as `resources/list` or `resources/templates/list` describes it."""
        return {
            "uriTemplate" if self.is_template else "uri": self.uri,
            "name": self.name,
            "description": inspect.getdoc(self.function) or "",
            "mimeType": self.mime_type,
        }

    async def read(self, uri: str, arguments: Mapping[str, str]) -> dict[str, Any]:
        """Return the contents of a URI: a string as text, bytes in base64."""
        value = await call(self.function, **arguments)
        head = {"uri": uri, "mimeType": self.mime_type}
        if isinstance(value, bytes):
            return {**head, "blob": base64.b64encode(value).decode()}
        return {**head, "text": str(value)}


def _compile(uri: str) -> re.Pattern[str]:
    """Return the pattern of a template in the two forms of RFC 6570 that name one parameter."""
    pattern, at = "", 0
    for found in _PARAMETER.finditer(uri):
        crosses_slashes = bool(found[1])
        pattern += re.escape(uri[at : found.start()])
        pattern += f"(?P<{found[2]}>{'.+' if crosses_slashes else '[^/]+'})"
        at = found.end()
    return re.compile(pattern + re.escape(uri[at:]), re.DOTALL)


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
