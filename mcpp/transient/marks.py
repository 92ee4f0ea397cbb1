"""Marks on MCP tool results: transient, consumed, and hints that pair tools.

A mark is stored in the result's `_meta` under two names (T-01): the bare name of the source
protocol, and a prefixed one that cannot collide with another vendor's use of the same word.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, overload

import msgspec

from mcpp.transient.results import ModelT, Result, ResultModel, as_json, changed

MAX_SUMMARY_CHARS: Final = 240
"""A summary is part of every later prompt, so a longer one is cut (T-17)."""

_CONTEXT: Final = "context"
_HINTS: Final = "contextHints"
_PREFIX: Final = "mcpp/"
_EFFECTS: Final = ("consumed", "consumes")


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


@overload
def transient(result: Result, summary: str | None = None) -> dict[str, Any]: ...
@overload
def transient(result: ModelT, summary: str | None = None) -> ModelT: ...
def transient(result: Result | ModelT, summary: str | None = None) -> dict[str, Any] | ModelT:
    """Return the result marked as transient; an error is returned unmarked (T-08).

    A client may collapse a transient result to its summary once it has been used. Without a
    summary, the client creates one.
    """
    stated = {} if summary is None else {"summary": cut(summary)}

    def mark(given: Result) -> dict[str, Any]:
        if given.get("isError"):
            return dict(given)
        return _with_meta(given, _CONTEXT, {**_context(given), "lifecycle": "transient", **stated})

    return changed(result, mark)


@overload
def consumed(result: Result, consumes: Iterable[str] | None = None) -> dict[str, Any]: ...
@overload
def consumed(result: ModelT, consumes: Iterable[str] | None = None) -> ModelT: ...
def consumed(
    result: Result | ModelT, consumes: Iterable[str] | None = None
) -> dict[str, Any] | ModelT:
    """Return the result marked as having consumed earlier results.

    By default it consumes the oldest pending result of a paired tool. `consumes` names specific
    results instead, each by the id of its call or of its response.
    """
    if isinstance(consumes, str):
        raise TypeError(f"consumes must be a list of ids, such as [{consumes!r}]")
    named = {} if consumes is None else {"consumes": list(consumes)}
    return changed(
        result,
        lambda given: _with_meta(given, _CONTEXT, {**_context(given), "consumed": True, **named}),
    )


@overload
def with_context_hints(
    result: Result, hints: Iterable[Hint | Mapping[str, Any]]
) -> dict[str, Any]: ...
@overload
def with_context_hints(result: ModelT, hints: Iterable[Hint | Mapping[str, Any]]) -> ModelT: ...
def with_context_hints(
    result: Result | ModelT, hints: Iterable[Hint | Mapping[str, Any]]
) -> dict[str, Any] | ModelT:
    """Return the result with hints that pair tools of this server."""
    written = [hint.to_json() if isinstance(hint, Hint) else dict(hint) for hint in hints]
    return changed(result, lambda given: _with_meta(given, _HINTS, written))


def read_mark(result: Result | ResultModel) -> Mark:
    """Return a result's mark. Members of the wrong type are ignored."""
    context = _context(as_json(result))
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


def read_hints(result: Result | ResultModel) -> list[Hint]:
    """Return a result's hints, skipping those that do not name both tools."""
    found = []
    hints = _meta(as_json(result), _HINTS)
    for hint in hints if isinstance(hints, list) else ():
        if not isinstance(hint, Mapping) or hint.get("lifecycle") != "transient":
            continue
        tool, consumer, step = hint.get("tool"), hint.get("consumedBy"), hint.get("step")
        if isinstance(tool, str) and isinstance(consumer, str):
            found.append(Hint(tool, consumer, step if isinstance(step, int) else None))
    return found


def with_effects(answer: Result, result: Result) -> dict[str, Any]:
    """Return the answer with a result's marks of what its call did: consumption and hints."""
    mark, hints = read_mark(result), read_hints(result)
    marked = consumed(answer, mark.consumes) if mark.consumed else dict(answer)
    return with_context_hints(marked, hints) if hints else marked


def without_effects(result: Result) -> dict[str, Any]:
    """Return the result without these marks."""
    meta = result.get("_meta")
    if not isinstance(meta, Mapping):
        return dict(result)
    kept = {}
    for name, value in meta.items():
        if name.removeprefix(_PREFIX) == _CONTEXT and isinstance(value, Mapping):
            rest = {key: one for key, one in value.items() if key not in _EFFECTS}
            kept.update({name: rest} if rest else {})
        elif name.removeprefix(_PREFIX) != _HINTS or not isinstance(value, list):
            kept[name] = value
    others = {name: value for name, value in result.items() if name != "_meta"}
    return {**others, "_meta": kept} if kept else others


def cut(text: str, limit: int = MAX_SUMMARY_CHARS) -> str:
    """Return the text on one line, without invisible characters, truncated to `limit` of them."""
    line = " ".join(text.split())
    if not line.isprintable():
        line = "".join(char for char in line if char.isprintable() or char in _JOINERS)
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


# Indic scripts, Persian and emoji need them.
_JOINERS: Final = "\u200c\u200d"
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
