"""The official conformance suite of MCP, run against a pod."""
