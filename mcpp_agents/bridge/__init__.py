"""The bridge: an existing MCP server becomes a participant of a pod."""

from mcpp_agents.bridge.agent import bridge
from mcpp_agents.bridge.upstream import Open, Upstream, over_http, over_stdio

__all__ = ["Open", "Upstream", "bridge", "over_http", "over_stdio"]
