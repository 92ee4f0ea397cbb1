"""Keeps data at the server and gives the model a summary and a reference.

For data that the model passes on without reading it. The reference is a digest of the data: equal
data has the same reference, and a reference cannot be guessed without knowing the data.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, overload

import msgspec

from mcpp.transient.marks import cut, with_effects, without_effects
from mcpp.transient.results import ModelT, Result, changed, encoded
from mcpp.transient.summaries import summarize

REDEEM: Final[dict[str, Any]] = {
    "name": "redeem_scratch",
    "description": "Return the data behind a scratch_ref.",
    "inputSchema": {
        "type": "object",
        "properties": {"scratch_ref": {"type": "string"}},
        "required": ["scratch_ref"],
    },
}
"""Definition of the tool that returns the data, for a server's `tools/list`."""


class Scratch:
    """Bounded store of results by reference. Owns the results; evicts the oldest first."""

    def __init__(self, max_results: int = 1000) -> None:
        if max_results < 1:
            raise ValueError("max_results must be at least 1")
        self._max_results = max_results
        # Encoded, so that callers cannot change it; ordered, so that threads evict one each.
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    @overload
    def keep(self, result: Result, summary: str | None = None) -> dict[str, Any]: ...
    @overload
    def keep(self, result: ModelT, summary: str | None = None) -> ModelT: ...
    def keep(self, result: Result | ModelT, summary: str | None = None) -> dict[str, Any] | ModelT:
        """Store a result and return its replacement: the summary and the `scratch_ref`.

        An error is returned unchanged, since the model has to read it. The marks of what the call
        did, consumption and hints, are those of the replacement; the others stay with the data.
        """
        return changed(result, lambda given: self._keep(given, summary))

    def _keep(self, result: Result, summary: str | None) -> dict[str, Any]:
        if result.get("isError"):
            return dict(result)
        data = encoded(without_effects(result))
        ref = "scratch-" + hashlib.sha256(data).hexdigest()[:24]
        self._kept.pop(ref, None)
        self._kept[ref] = data
        if len(self._kept) > self._max_results:
            self._kept.popitem(last=False)
        text = cut(summary) if summary is not None else summarize(result)
        answer = {
            "content": [{"type": "text", "text": f"{text} [scratch_ref: {ref}]"}],
            "structuredContent": {"summary": text, "scratch_ref": ref},
        }
        return with_effects(answer, result)

    def redeem(self, arguments: Mapping[str, Any] | str) -> dict[str, Any]:
        """Return the result behind a reference, or a tool error if it is unknown or evicted."""
        ref = arguments if isinstance(arguments, str) else arguments.get("scratch_ref")
        kept = self._kept.get(ref) if isinstance(ref, str) else None
        if kept is None:
            text = "This scratch_ref is unknown or has expired: fetch the data again."
            return {"content": [{"type": "text", "text": text}], "isError": True}
        result: dict[str, Any] = msgspec.json.decode(kept)
        return result
