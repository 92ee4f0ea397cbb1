"""A participant's tools, resources and prompts, served as MCP methods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mcpp.agent.request_server import Method
from mcpp.agent.resources import PromptTemplate, Resource
from mcpp.agent.tools import Tool, ToolCall
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure

T = TypeVar("T")


@dataclass(slots=True)
class Catalog:
    """A participant's registered tools, resources and prompts. Owns them."""

    participant: str
    tools: dict[str, Tool] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    prompts: dict[str, PromptTemplate] = field(default_factory=dict)

    def methods(self) -> dict[str, Method]:
        """Return the MCP methods to serve.

        Resources and prompts are served only where there are any: like an MCP server without the
        capability, a participant without them answers "method not found".
        """
        methods: dict[str, Method] = {
            "ping": self._ping,
            "tools/list": self._list_tools,
            rpc.TOOLS_CALL: self._call_tool,
        }
        if self.resources:
            methods |= {
                "resources/list": self._list_resources,
                "resources/templates/list": self._list_templates,
                "resources/read": self._read_resource,
            }
        if self.prompts:
            methods |= {"prompts/list": self._list_prompts, "prompts/get": self._get_prompt}
        return methods

    async def _ping(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {}

    async def _list_tools(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {"tools": [tool.to_json() for tool in self.tools.values()]}

    async def _call_tool(self, params: dict[str, Any], call: ToolCall) -> Any:
        tool = self._find("tool", self.tools, params)
        arguments = params.get("arguments", {})
        if not isinstance(arguments, dict):
            raise Failure(rpc.INVALID_PARAMS, "$.arguments: must be an object")
        return (await tool.run(arguments, call)).to_json()

    async def _list_resources(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {"resources": [resource.to_json() for resource in self.resources.values()]}

    async def _list_templates(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {"resourceTemplates": []}

    async def _read_resource(self, params: dict[str, Any], call: ToolCall) -> Any:
        uri = params.get("uri")
        resource = self.resources.get(uri) if isinstance(uri, str) else None
        if resource is None:
            raise Failure(rpc.RESOURCE_NOT_FOUND, f"no resource {uri!r}")
        return {"contents": [await resource.read()]}

    async def _list_prompts(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {"prompts": [prompt.to_json() for prompt in self.prompts.values()]}

    async def _get_prompt(self, params: dict[str, Any], call: ToolCall) -> Any:
        prompt = self._find("prompt", self.prompts, params)
        return await prompt.get(params.get("arguments", {}))

    def _find(self, what: str, among: Mapping[str, T], params: dict[str, Any]) -> T:
        name = params.get("name")
        found = among.get(name) if isinstance(name, str) else None
        if found is None:
            raise Failure(rpc.INVALID_PARAMS, f"{self.participant} has no {what} {name!r}")
        return found
