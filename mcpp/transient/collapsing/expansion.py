"""The tool `expand`, with which a model retrieves collapsed content by its handle."""

from typing import Any, Final

EXPAND: Final = "expand"
"""The tool's name. `mcpp.prompts.tool_name` gives it to no participant's tool."""


def expand_tool(api: str = "anthropic") -> dict[str, Any]:
    """Return the definition of `expand` for `anthropic`, `openai_chat` or `openai_responses`."""
    description = (
        "Return the full content of something shown in the conversation as "
        "[collapsed; handle H], [folded; handle H] or [cut; …; handle H]."
    )
    schema = {
        "type": "object",
        "properties": {"handle": {"type": "string"}},
        "required": ["handle"],
        "additionalProperties": False,
    }
    match api:
        case "anthropic":
            return {"name": EXPAND, "description": description, "input_schema": schema}
        case "openai_chat":
            function = {"name": EXPAND, "description": description, "parameters": schema}
            return {"type": "function", "function": function}
        case "openai_responses":
            function = {"name": EXPAND, "description": description, "parameters": schema}
            return {"type": "function", **function, "strict": True}
        case _:
            raise ValueError(f"unknown API: {api!r}")
