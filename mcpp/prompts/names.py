"""Tool names and call ids in the form that every model API accepts."""

import hashlib
import re
from functools import lru_cache
from typing import Final

# Call ids: OpenAI's Chat API accepts 40 characters, its Responses API 64, Anthropic this alphabet.
_is_call_id = re.compile(r"[A-Za-z0-9_-]{1,40}").fullmatch
_is_plain_server = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*").fullmatch
_is_plain_tool = re.compile(r"[A-Za-z0-9-][A-Za-z0-9_-]*").fullmatch
_looks_digested = re.compile(r".*__[0-9a-f]{16}").fullmatch
_is_digested_id = re.compile(r"call-[0-9a-f]{32}").fullmatch
_MAX: Final = 64


@lru_cache(maxsize=4096)
def tool_name(server: str, tool: str) -> str:
    """Return the name under which a participant's tool is offered to a model.

    `SERVER__TOOL` if that fits `[a-zA-Z0-9_-]{1,64}` and is unambiguous, else a shortened tool name
    and a digest of both. The mapping is one-to-one and depends on nothing else, so it is stable.
    """
    plain = f"{server}__{tool}"
    if (
        len(plain) <= _MAX
        and _is_plain_server(server)
        and _is_plain_tool(tool)
        and not _looks_digested(plain)
    ):
        return plain
    digest = hashlib.sha256(f"{len(server)}:{server}{tool}".encode("utf-8", "replace")).hexdigest()
    shown = re.sub(r"[^A-Za-z0-9-]+", "_", tool)[: _MAX - 18]
    return f"{shown}__{digest[:16]}"


def call_id(id: str) -> str:
    """Return a call's id in a form that every API accepts."""
    if _is_call_id(id) and not _is_digested_id(id):
        return id
    return "call-" + hashlib.sha256(id.encode("utf-8", "replace")).hexdigest()[:32]
