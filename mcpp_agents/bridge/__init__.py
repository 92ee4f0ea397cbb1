"""`mcpp bridge`: an MCP server as a participant of a pod."""
