"""Lean mode: the data stays with the server, the model gets a summary and a reference.

For data that the model need not read, only count or hand on. The reference is the digest of the
data, so it is the same for the same data, and knowing it unasked takes knowing the data.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mcpp.transient.marks import Result, cut
from mcpp.transient.summaries import summarize

REDEEM: Final[dict[str, Any]] = {
    "name": "redeem_scratch",
    "description": "Return the data that a scratch_ref stands for.",
    "inputSchema": {
        "type": "object",
        "properties": {"scratch_ref": {"type": "string"}},
        "required": ["scratch_ref"],
    },
}
"""The definition of the tool that gives the data back, for a server's `tools/list`."""


class Scratch:
    """Results kept behind references, the oldest forgotten first. Owns what it keeps."""

    def __init__(self, max_results: int = 1000) -> None:
        if max_results < 1:
            raise ValueError("max_results must be at least 1")
        self._max_results = max_results
        self._kept: dict[
            str, bytes
        ] = {}  # as JSON: what the caller does to its own changes nothing

    def keep(self, result: Result, summary: str | None = None) -> dict[str, Any]:
        """Keep a result and return the lean one: its summary and its `scratch_ref`.

        An error is returned as it is: the model has to read it.
        """
        if result.get("isError"):
            return dict(result)
        data = msgspec.json.encode(result)
        ref = "scratch-" + hashlib.sha256(data).hexdigest()[:24]
        self._kept.pop(ref, None)
        self._kept[ref] = data
        if len(self._kept) > self._max_results:
            del self._kept[next(iter(self._kept))]
        text = cut(summary) if summary is not None else summarize(result)
        return {
            "content": [{"type": "text", "text": f"{text} [scratch_ref: {ref}]"}],
            "structuredContent": {"summary": text, "scratch_ref": ref},
        }

    def redeem(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return the result behind a reference, or a tool error that says it is gone."""
        ref = arguments if isinstance(arguments, str) else arguments.get("scratch_ref")
        kept = self._kept.get(ref) if isinstance(ref, str) else None
        if kept is None:
            text = "This scratch_ref is unknown or forgotten: fetch the data again."
            return {"content": [{"type": "text", "text": text}], "isError": True}
        result: dict[str, Any] = msgspec.json.decode(kept)
        return result
