"""Marks on MCP tool results: what may collapse, what was consumed, which tools go together.

A mark lives in the result's `_meta`, under a bare name and under ours (T-01): the bare one is the
source protocol's, the prefixed one is safe from other vendors' use of the same word.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

Result = Mapping[str, Any]
"""An MCP `CallToolResult` as JSON: `content`, perhaps `structuredContent`, `isError`, `_meta`."""

MAX_SUMMARY_CHARS: Final = 240
"""A summary is read at every later call; past this it is cut (T-17)."""

_CONTEXT: Final = "context"
_HINTS: Final = "contextHints"
_PREFIX: Final = "mcpp/"


class Mark(msgspec.Struct, frozen=True):
    """What a result says about itself: it may collapse, or it has consumed others."""

    transient: bool = False
    summary: str | None = None
    consumed: bool = False
    consumes: tuple[str, ...] | None = None  # None: whatever comes first; (): nothing


class Hint(msgspec.Struct, frozen=True):
    """A workflow's word that one tool's results are used up by another."""

    tool: str
    consumed_by: str
    step: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the hint as it stands in `_meta.contextHints`."""
        step = {} if self.step is None else {"step": self.step}
        return {
            **step,
            "tool": self.tool,
            "lifecycle": "transient",
            "consumedBy": self.consumed_by,
        }


def transient(result: Result, summary: str | None = None) -> dict[str, Any]:
    """Return the result marked as collapsible once it has been used, unless it is an error (T-08).

    Without a summary the client makes one.
    """
    if result.get("isError"):
        return dict(result)
    stated = {} if summary is None else {"summary": cut(summary)}
    return _with_meta(result, _CONTEXT, {**_context(result), "lifecycle": "transient", **stated})


def consumed(result: Result, consumes: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the result marked as having used up an earlier one.

    Without `consumes` that is the oldest pending result of a paired tool. `consumes` names results
    instead, each by the id of its call or of its response.
    """
    if isinstance(consumes, str):
        raise TypeError(f"consumes must be several ids, such as [{consumes!r}]")
    named = {} if consumes is None else {"consumes": list(consumes)}
    return _with_meta(result, _CONTEXT, {**_context(result), "consumed": True, **named})


def with_context_hints(result: Result, hints: Iterable[Hint | Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result with hints that pair tools of this server."""
    written = [hint.to_json() if isinstance(hint, Hint) else dict(hint) for hint in hints]
    return _with_meta(result, _HINTS, written)


def read_mark(result: Result) -> Mark:
    """Return what a result says about itself. Members of a wrong type say nothing."""
    context = _context(result)
    if not context:
        return _NO_MARK
    summary = context.get("summary")
    consumes = context.get("consumes")
    return Mark(
        transient=context.get("lifecycle") == "transient",
        summary=summary if isinstance(summary, str) else None,
        consumed=context.get("consumed") is True,
        consumes=tuple(name for name in consumes if isinstance(name, str))
        if isinstance(consumes, list)
        else None,
    )


def read_hints(result: Result) -> list[Hint]:
    """Return the pairs a result declares, skipping whatever does not name both tools."""
    found = []
    hints = _meta(result, _HINTS)
    for hint in hints if isinstance(hints, list) else ():
        if not isinstance(hint, Mapping) or hint.get("lifecycle") != "transient":
            continue
        tool, consumer, step = hint.get("tool"), hint.get("consumedBy"), hint.get("step")
        if isinstance(tool, str) and isinstance(consumer, str):
            found.append(Hint(tool, consumer, step if isinstance(step, int) else None))
    return found


def cut(text: str, limit: int = MAX_SUMMARY_CHARS) -> str:
    """Return the text on one line and no longer than `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


_NO_MARK: Final = Mark()


def _context(result: Result) -> Mapping[str, Any]:
    value = _meta(result, _CONTEXT)
    return value if isinstance(value, dict) else {}


def _meta(result: Result, name: str) -> Any:
    meta = result.get("_meta")
    if not isinstance(meta, dict):
        return None
    # T-01: ours first, since the bare word may be another protocol's.
    return meta.get(_PREFIX + name, meta.get(name))


def _with_meta(result: Result, name: str, value: Any) -> dict[str, Any]:
    meta = result.get("_meta")
    kept = dict(meta) if isinstance(meta, Mapping) else {}
    # T-01: what is of another type under the bare name is another vendor's, and stays.
    if isinstance(kept.get(name, value), type(value)):
        kept[name] = value
    return {**result, "_meta": {**kept, _PREFIX + name: value}}
