"""MCP tool results as JSON objects or as `CallToolResult` of the package `mcp`.

Every helper takes either and returns the same type. The package is not imported: any object with
pydantic's `model_dump` and `model_validate` is read as a result.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self, TypeVar, overload

import msgspec

Result = Mapping[str, Any]
"""An MCP `CallToolResult` as JSON: `content`, perhaps `structuredContent`, `isError`, `_meta`."""


class ResultModel(Protocol):
    """A tool result as an object, such as `CallToolResult`."""

    def model_dump(self, *, mode: str, by_alias: bool, exclude_none: bool) -> dict[str, Any]:
        """Return the result as JSON."""

    @classmethod
    def model_validate(cls, obj: Any, /) -> Self:
        """Return the object for JSON."""


ModelT = TypeVar("ModelT", bound=ResultModel)


def as_json(result: Result | ResultModel) -> Result:
    """Return a result as a JSON object."""
    if isinstance(result, Mapping):
        return result
    if not hasattr(result, "model_dump"):
        kinds = "a JSON object or a CallToolResult of the package mcp"
        raise TypeError(f"A tool result is {kinds}, not {type(result)}")
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


@overload
def changed(result: Result, change: Callable[[Result], dict[str, Any]]) -> dict[str, Any]: ...
@overload
def changed(result: ModelT, change: Callable[[Result], dict[str, Any]]) -> ModelT: ...
def changed(
    result: Result | ModelT, change: Callable[[Result], dict[str, Any]]
) -> dict[str, Any] | ModelT:
    """Return a changed copy of a result, of the same type."""
    if isinstance(result, Mapping):
        return change(result)
    return type(result).model_validate(change(as_json(result)))


def encoded(value: Any, **options: Any) -> bytes:
    """Return a JSON value as bytes, with U+FFFD for invalid Unicode."""
    try:
        return msgspec.json.encode(value, **options)
    except UnicodeEncodeError:  # half of a surrogate pair, which Python's JSON parser lets through
        return msgspec.json.encode(_valid(value), **options)


def _valid(value: Any) -> Any:
    """Return a copy of a JSON value with U+FFFD for invalid Unicode."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {_valid(name): _valid(member) for name, member in value.items()}
    return [_valid(each) for each in value] if isinstance(value, (list, tuple)) else value
