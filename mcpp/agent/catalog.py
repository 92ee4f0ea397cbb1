"""A participant's tools, resources and prompts, served as MCP methods."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mcpp.agent.request_server import Method
from mcpp.agent.resources import PromptTemplate, Resource
from mcpp.agent.tools import Tool, ToolCall
from mcpp.protocol import rpc
from mcpp.protocol.cards import fitting_card
from mcpp.protocol.rpc import Failure

T = TypeVar("T")


@dataclass(slots=True)
class Catalog:
    """A participant's registered tools, resources and prompts. Owns them."""

    participant: str
    tools: dict[str, Tool] = field(default_factory=dict)
    resources: dict[str, Resource] = field(default_factory=dict)
    prompts: dict[str, PromptTemplate] = field(default_factory=dict)

    @property
    def tool_names(self) -> list[str]:
        """The names of the tools, in the order of their registration."""
        return list(self.tools)

    def add_tool(self, tool: Tool) -> None:
        """Register a tool. Raises ValueError for a name that is taken."""
        _add(self.tools, tool.name, tool, "tool")

    def add_prompt(self, prompt: PromptTemplate) -> None:
        """Register a prompt. Raises ValueError for a name that is taken."""
        _add(self.prompts, prompt.name, prompt, "prompt")

    def add_resource(self, resource: Resource) -> None:
        """Register a resource or a template. Raises ValueError for an address that is taken."""
        _add(self.resources, resource.uri, resource, "resource")

    def card(self) -> dict[str, Any]:
        """Return names and descriptions, as far as they fit into a card (G-86)."""
        offers = {
            "tools": [_described(each.name, each.description) for each in self.tools.values()],
            "prompts": [
                _described(each.name, each.tool.description) for each in self.prompts.values()
            ],
            "resources": [
                {"uri": each.uri, "description": each.name} for each in self.resources.values()
            ],
        }
        return fitting_card(
            {name: some for name, some in offers.items() if some or name == "tools"}
        )

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
        found = [each.to_json() for each in self.resources.values() if not each.is_template]
        return {"resources": found}

    async def _list_templates(self, params: dict[str, Any], call: ToolCall) -> Any:
        found = [each.to_json() for each in self.resources.values() if each.is_template]
        return {"resourceTemplates": found}

    async def _read_resource(self, params: dict[str, Any], call: ToolCall) -> Any:
        uri = params.get("uri")
        if isinstance(uri, str):
            # An address that is registered as such comes before templates.
            exact = self.resources.get(uri)
            for resource in (exact,) if exact is not None else self.resources.values():
                arguments = resource.match(uri)
                if arguments is not None:
                    return {"contents": [await resource.read(uri, arguments)]}
        raise Failure(rpc.RESOURCE_NOT_FOUND, f"no resource {uri!r}")

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


def _add(among: dict[str, T], name: str, value: T, what: str) -> None:
    if name in among:
        raise ValueError(f"there is a {what} {name!r} already")
    among[name] = value


def _described(name: str, description: str) -> dict[str, str]:
    return {"name": name, "description": description}
