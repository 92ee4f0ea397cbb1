"""Memory as an MCP server, and the tools it shares with the participant."""
