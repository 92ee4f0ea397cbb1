"""Memory as an MCP server, and the tool definitions it shares with the pod participant."""
