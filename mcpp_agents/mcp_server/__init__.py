"""`mcpp mcp`: a pod as an MCP server, so that any MCP client can use it."""
