"""Tools made from functions: the schema comes from the type hints and validates arguments."""

import copy
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

import msgspec

from mcpp import kinds
from mcpp.agent.threads import ThreadLimitError
from mcpp.agent.threads import call as call_function
from mcpp.client.tasks import contained
from mcpp.kinds import Kind
from mcpp.protocol import rpc
from mcpp.protocol.codec import is_kind
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.rpc import Failure, ToolResult
from mcpp.protocol.validation import path_and_reason
from mcpp.transient.summaries import TransientRule, mark_by_rule

if TYPE_CHECKING:
    from mcpp.client.pod import Pod

__all__ = ["Tool", "ToolCall", "as_result"]

logger = logging.getLogger("mcpp.agent")

_REFERENCE: Final = "#/$defs/{name}"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request being served. A tool gets it in the parameter annotated with this class."""

    pod: "Pod"
    envelope: Envelope

    @property
    def sender(self) -> str:
        """The participant that made the request."""
        return self.envelope.sender

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report progress to the caller.

        Args:
            progress: how much is done, in any unit.
            total: how much there is to do, if known.
            message: what is being done, for people.
        """
        members = {"progress": progress, "total": total, "message": message}
        params = {name: value for name, value in members.items() if value is not None}
        await self.pod.notify(
            rpc.PROGRESS,
            {"progressToken": self.envelope.id, **params},
            to=[self.sender],
            correlation_id=self.envelope.id,
            context=None if self.envelope.context is None else self.envelope.context.id,
            wait=False,
        )


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that other participants can call."""

    name: str
    description: str
    input_schema: Mapping[str, Any]
    function: Callable[..., Any]
    arguments: type[msgspec.Struct]
    call_argument: str | None = None  # the parameter that gets the ToolCall
    transient: TransientRule | str | bool = False

    @classmethod
    def from_function(
        cls,
        function: Callable[..., Any],
        name: str | None = None,
        description: str | None = None,
        *,
        transient: TransientRule | str | bool = False,
    ) -> "Tool":
        """Create a tool from a function, sync or async.

        Raises TypeError for a name that does not fit into a kind, or parameters that cannot be
        passed by name or described by JSON Schema.
        """
        name = name or getattr(function, "__name__", None)
        if name is None:
            raise TypeError(f"{function!r} has no name: pass name=…")
        if not name or not is_kind(str(Kind(kinds.RESPONSE, rpc.TOOLS_CALL, name))):
            raise TypeError(f"tool {name!r}: the name is empty or too long for a kind")
        hints = get_type_hints(function, include_extras=True)
        call_argument = None
        fields: list[tuple[str, Any, Any]] = []
        for parameter in inspect.signature(function).parameters.values():
            hint = hints.get(parameter.name, Any)
            if hint is ToolCall or ToolCall in get_args(hint):
                call_argument = parameter.name
                continue
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise TypeError(f"tool {name}: {parameter} cannot be passed by name")
            fields.append((parameter.name, hint, _default(parameter)))
        arguments = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        return cls(
            name,
            description or inspect.getdoc(function) or "",
            _schema(arguments, name),
            function,
            arguments,
            call_argument,
            transient,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the tool as `tools/list` describes it."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
        }

    async def run(self, arguments: Mapping[str, Any], call: ToolCall) -> ToolResult:
        """Run the function. An exception in it becomes a result with `is_error` (P-17).

        Raises Failure for invalid arguments, and ThreadLimitError.
        """
        given = self.read_arguments(arguments)
        if self.call_argument is not None:
            given[self.call_argument] = call
        try:
            return self._marked(as_result(await contained(call_function(self.function, **given))))
        except (Failure, ThreadLimitError):
            raise
        except Exception as error:
            # P-17: the log gets the traceback, the caller only the message.
            logger.exception("tool %s failed", self.name)
            text = str(error) or type(error).__name__
            return ToolResult([{"type": "text", "text": text}], is_error=True)

    def _marked(self, result: ToolResult) -> ToolResult:
        if self.transient is False:
            return result
        return ToolResult.from_json(mark_by_rule(result.to_json(), self.transient))

    def read_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return validated arguments by parameter name. Raises Failure with the invalid path."""
        try:
            try:
                struct = msgspec.convert(arguments, self.arguments)
            except msgspec.ValidationError:  # 5.0 is an integer in JSON Schema
                struct = msgspec.convert(rpc.normalize_numbers(arguments), self.arguments)
        except msgspec.ValidationError as error:
            below, reason = path_and_reason(error)
            path = f"$.arguments{below}"
            raise Failure(rpc.INVALID_PARAMS, f"{path}: {reason}", {"path": path}) from None
        return {name: getattr(struct, name) for name in struct.__struct_fields__}


def as_result(value: Any) -> ToolResult:
    """Return a tool's return value as a result: a string as text, other values as JSON.

    A value that already has MCP's shape, as `mcpp.transient` returns it, is kept as it is.
    """
    if isinstance(value, ToolResult):
        return value
    if _has_result_shape(value):
        return ToolResult.from_json(value)
    if value is None:
        return ToolResult()
    if isinstance(value, str):
        return ToolResult([{"type": "text", "text": value}])
    plain = msgspec.to_builtins(value)
    content = [{"type": "text", "text": msgspec.json.encode(plain).decode()}]
    if isinstance(plain, dict):
        return ToolResult(content, plain)
    return ToolResult(content, {"result": plain}, meta={rpc.WRAPPED: True})


_RESULT_MEMBERS: Final = frozenset(("content", "structuredContent", "isError", "_meta"))


def _has_result_shape(value: Any) -> bool:
    if not isinstance(value, dict) or not value.keys() <= _RESULT_MEMBERS:
        return False
    content = value.get("content")
    return isinstance(content, list) and all(
        isinstance(part, dict) and isinstance(part.get("type"), str) for part in content
    )


def _default(parameter: inspect.Parameter) -> Any:
    if parameter.default is parameter.empty:
        return msgspec.field()
    if isinstance(parameter.default, list | dict | set):
        return msgspec.field(default_factory=partial(copy.copy, parameter.default))
    return msgspec.field(default=parameter.default)


def _schema(arguments: type[msgspec.Struct], name: str) -> dict[str, Any]:
    try:
        (root,), parts = msgspec.json.schema_components((arguments,), ref_template=_REFERENCE)
    except TypeError as error:
        raise TypeError(f"tool {name}: {error}") from None
    schema = parts.pop(root["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    return {**schema, "$defs": parts} if parts else schema
