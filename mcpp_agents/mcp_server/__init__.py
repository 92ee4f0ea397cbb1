"""A pod as an MCP server: any MCP client gets everybody's tools, and a voice."""

from mcpp_agents.mcp_server.server import PodServer

__all__ = ["PodServer"]
