"""Marks on MCP tool results: transient, consumed, and hints that pair tools.

A mark is stored in the result's `_meta` under two names (T-01): the bare name of the source
protocol, and a prefixed one that cannot collide with another vendor's use of the same word.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

Result = Mapping[str, Any]
"""An MCP `CallToolResult` as JSON: `content`, perhaps `structuredContent`, `isError`, `_meta`."""

MAX_SUMMARY_CHARS: Final = 240
"""A summary is part of every later prompt, so a longer one is cut (T-17)."""

_CONTEXT: Final = "context"
_HINTS: Final = "contextHints"
_PREFIX: Final = "mcpp/"


class Mark(msgspec.Struct, frozen=True):
    """A result's mark: it is transient, or it has consumed other results."""

    transient: bool = False
    summary: str | None = None
    consumed: bool = False
    consumes: tuple[str, ...] | None = None  # None: the oldest pending result; (): nothing


class Hint(msgspec.Struct, frozen=True):
    """A workflow's declaration that one tool consumes the results of another."""

    tool: str
    consumed_by: str
    step: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the hint in the form used in `_meta.contextHints`."""
        step = {} if self.step is None else {"step": self.step}
        return {
            **step,
            "tool": self.tool,
            "lifecycle": "transient",
            "consumedBy": self.consumed_by,
        }


def transient(result: Result, summary: str | None = None) -> dict[str, Any]:
    """Return the result marked as transient; an error is returned unmarked (T-08).

    A client may collapse a transient result to its summary once it has been used. Without a
    summary, the client creates one.
    """
    if result.get("isError"):
        return dict(result)
    stated = {} if summary is None else {"summary": cut(summary)}
    return _with_meta(result, _CONTEXT, {**_context(result), "lifecycle": "transient", **stated})


def consumed(result: Result, consumes: Iterable[str] | None = None) -> dict[str, Any]:
    """Return the result marked as having consumed earlier results.

    By default it consumes the oldest pending result of a paired tool. `consumes` names specific
    results instead, each by the id of its call or of its response.
    """
    if isinstance(consumes, str):
        raise TypeError(f"consumes must be a list of ids, such as [{consumes!r}]")
    named = {} if consumes is None else {"consumes": list(consumes)}
    return _with_meta(result, _CONTEXT, {**_context(result), "consumed": True, **named})


def with_context_hints(result: Result, hints: Iterable[Hint | Mapping[str, Any]]) -> dict[str, Any]:
    """Return the result with hints that pair tools of this server."""
    written = [hint.to_json() if isinstance(hint, Hint) else dict(hint) for hint in hints]
    return _with_meta(result, _HINTS, written)


def read_mark(result: Result) -> Mark:
    """Return a result's mark. Members of the wrong type are ignored."""
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
    """Return a result's hints, skipping those that do not name both tools."""
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
    """Return the text on one line, truncated to `limit` characters."""
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
    # T-01: the prefixed name first, since the bare one may belong to another protocol.
    return meta.get(_PREFIX + name, meta.get(name))


def _with_meta(result: Result, name: str, value: Any) -> dict[str, Any]:
    meta = result.get("_meta")
    kept = dict(meta) if isinstance(meta, Mapping) else {}
    # T-01: a value of another type under the bare name belongs to another vendor and stays.
    if isinstance(kept.get(name, value), type(value)):
        kept[name] = value
    return {**result, "_meta": {**kept, _PREFIX + name: value}}
