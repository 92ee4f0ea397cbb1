"""Deciding what collapses: the rules, the prompt cache, and the messages of any MCP client."""
