"""`mcpp bridge`: an MCP server as a participant of a pod; coding agents are in `acp`."""
