"""Tools made from functions: the schema comes from the type hints and validates arguments."""

import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import MISSING, dataclass, field
from typing import TYPE_CHECKING, Any, Final, get_args, get_type_hints

import msgspec

from mcpp import kinds
from mcpp.agent.threads import ThreadLimitError
from mcpp.agent.threads import call as call_function
from mcpp.client.sender import Progress
from mcpp.client.tasks import contained
from mcpp.conversation.text_stream import TextStream
from mcpp.kinds import Kind
from mcpp.protocol import rpc
from mcpp.protocol.codec import is_kind
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.rpc import Failure, ToolResult
from mcpp.protocol.value_types import InvalidValueError, Parameter, Parameters, ValueType, to_json
from mcpp.transient.summaries import TransientRule, mark_by_rule

if TYPE_CHECKING:
    from mcpp.client.pod import Pod
    from mcpp.client.scopes.context_scope import ContextScope
    from mcpp.client.scopes.templates import ContextTemplate

__all__ = ["Tool", "ToolCall", "as_result"]

logger = logging.getLogger("mcpp.agent")

# Return hints that say nothing about a result's structure.
_UNDESCRIBED: Final = (Any, None, type(None), str, ToolResult, dict, Mapping)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A request being served. A tool gets it in the parameter annotated with this class."""

    pod: "Pod"
    envelope: Envelope
    _ended: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    _private: threading.Event = field(default_factory=threading.Event, repr=False, compare=False)
    _reserved: list[int] = field(default_factory=list, repr=False, compare=False)  # bytes
    _streams: list[TextStream] = field(default_factory=list, repr=False, compare=False)

    @property
    def cancelled(self) -> bool:
        """Whether the requester has given up. May be read in a thread.

        A blocking function should look from time to time, and return: its thread cannot be stopped,
        and counts for the requester until it ends.
        """
        return self._ended.is_set()

    @property
    def is_private(self) -> bool:
        """Whether only the requester receives the result (A-14), as it does in a private call."""
        return self._private.is_set()

    def keep_private(self) -> None:
        """Have only the requester receive the result, as an attachment that is private to it."""
        self._private.set()

    async def end(self, *, is_answered: bool) -> None:
        """Note that the request is no longer served."""
        self._ended.set()
        for stream in self._streams:
            if is_answered:
                stream.close()
            else:
                await stream.end()

    @property
    def response_id(self) -> str | None:
        """The id that the response has to have, if parts of its text were published."""
        return self._streams[0].id if self._streams else None

    async def write(self, text: str) -> None:
        """Publish a piece of the result's text before it is complete.

        What is published is not the result: return the whole text in the end. A tool that is an
        async generator does both by yielding its pieces. Nothing of a private result is published.
        """
        if self.is_private:
            return
        if not self._streams:
            context = None if self.envelope.context is None else self.envelope.context.id
            self._streams.append(
                self.pod.stream(to=[self.sender], correlation_id=self.envelope.id, context=context)
            )
        await self._streams[0].write(text)

    @property
    def sender(self) -> str:
        """The participant that made the request."""
        return self.envelope.sender

    @property
    def state(self) -> Any:
        """What the agent's `lifespan` yields (see `Participant`)."""
        return self.pod.state

    def child(
        self,
        type: "str | ContextTemplate | None" = None,
        *,
        title: str | None = None,
        id: str | None = None,
        **metadata: Any,
    ) -> "ContextScope":
        """Open a context below the call's own: `async with call.child("task") as task`.

        Below a call in the main context it has no parent. The arguments are those of `Pod.context`.
        """
        parent = self.envelope.context
        return self.pod.context(type, title=title, id=id, parent=parent, **metadata)

    async def progress(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report progress to the caller, unless envelopes of this agent are waiting to be sent.

        Progress is worth less than an answer, which would have to wait behind it (P-44).

        Args:
            progress: how much is done, in any unit.
            total: how much there is to do, if known.
            message: what is being done, for people; all hear it, so a private call has none.
        """
        if self.pod.is_congested:
            return
        if self.is_private:
            message = None
        members = {"progress": progress, "total": total, "message": message}
        params = {name: value for name, value in members.items() if value is not None}
        await self.pod.notify(
            rpc.PROGRESS,
            {"progressToken": rpc.progress_token(self.envelope), **params},
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
    function: Callable[..., Any]
    parameters: Parameters
    result: "ResultType | None" = None
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
        """Create a tool from a function, sync or async, or an async generator of text.

        Raises TypeError for a name that does not fit into a kind, a method that is not bound, and
        parameters or results that JSON cannot carry.
        """
        name = name or getattr(function, "__name__", None)
        if name is None:
            raise TypeError(f"{function!r} has no name: pass name=…")
        if not is_kind(str(Kind(kinds.RESPONSE, rpc.TOOLS_CALL, name))):
            raise TypeError(f"tool {name!r}: the name is too long for a kind")
        is_stream = inspect.isasyncgenfunction(function)
        try:
            hints = _hints(function)
            parameters, call_argument = _parameters(function, hints)
            return cls(
                name,
                description or inspect.getdoc(function) or "",
                function,
                Parameters(name, parameters),
                None if is_stream else ResultType.of(hints.get("return", Any)),
                call_argument,
                transient,
            )
        except TypeError as error:
            raise TypeError(f"tool {name}: {error}") from None

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the arguments."""
        return self.parameters.schema

    def to_json(self) -> dict[str, Any]:
        """Return the tool as `tools/list` describes it."""
        described = {
            "name": self.name,
            "description": self.description,
            "inputSchema": self.input_schema,
        }
        return (
            described if self.result is None else described | {"outputSchema": self.result.schema}
        )

    async def run(self, arguments: Mapping[str, Any], call: ToolCall) -> ToolResult:
        """Run the function. An exception in it becomes a result with `is_error` (P-17).

        Raises Failure for invalid arguments, and ThreadLimitError.
        """
        given = self.read_arguments(arguments)
        if self.call_argument is not None:
            given[self.call_argument] = call
        try:
            result = as_result(await contained(self._call(given, call)))
            if self.result is not None:
                self.result.check(result)
            return self._marked(result)
        except (Failure, ThreadLimitError):
            raise
        except Exception as error:
            # P-17: the log gets the traceback, the caller only the message.
            logger.exception("tool %s failed", self.name)
            return ToolResult([{"type": "text", "text": _message(error)}], is_error=True)

    async def _call(self, given: dict[str, Any], call: ToolCall) -> Any:
        if not inspect.isasyncgenfunction(self.function):
            return await call_function(self.function, **given)
        pieces: list[str] = []
        async with aclosing(self.function(**given)) as yielded:
            async for piece in yielded:
                if isinstance(piece, Progress):
                    await call.progress(piece.progress, piece.total, piece.message)
                elif isinstance(piece, str):
                    pieces.append(piece)
                    await call.write(piece)
                else:
                    found = type(piece).__name__
                    raise TypeError(f"it yielded {found}, and not a string or mcpp.Progress")
        return "".join(pieces)

    def _marked(self, result: ToolResult) -> ToolResult:
        if self.transient is False:
            return result
        return ToolResult.from_json(mark_by_rule(result.to_json(), self.transient))

    def read_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return validated arguments by parameter name. Raises Failure with the invalid path."""
        try:
            return self.parameters.read(arguments)
        except InvalidValueError as error:
            path = f"$.arguments{error.path}"
            raise Failure(rpc.INVALID_PARAMS, f"{path}: {error.reason}", {"path": path}) from None


@dataclass(frozen=True, slots=True)
class ResultType:
    """What a tool returns, if its hint says so. A value that is no object is wrapped in one."""

    value: ValueType
    is_wrapped: bool

    @classmethod
    def of(cls, hint: Any) -> "ResultType | None":
        """Return the type of a return hint, None for one that says nothing. Raises TypeError."""
        if hint in _UNDESCRIBED or hint in (dict[str, Any], Mapping[str, Any]):
            return None
        try:
            found = ValueType.of(hint)
        except TypeError as error:
            raise TypeError(f"its result: {error}") from None
        return cls(found, found.schema.get("type") != "object")

    @property
    def schema(self) -> Mapping[str, Any]:
        """The tool's `outputSchema`, which has to be that of an object."""
        if not self.is_wrapped:
            return self.value.schema
        inner = {name: part for name, part in self.value.schema.items() if name != "$defs"}
        definitions = self.value.schema.get("$defs")
        schema = {"type": "object", "properties": {"result": inner}, "required": ["result"]}
        return schema | {"$defs": definitions} if definitions else schema

    def check(self, result: ToolResult) -> None:
        """Raise TypeError for a result that is not as promised: clients validate it, too."""
        if result.is_error:
            return
        try:
            self.value.read(result.value)
        except InvalidValueError as error:
            where = f" at $.result{error.path}" if error.path else ""
            raise TypeError(f"the result is not as annotated{where}: {error.reason}") from None


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
    plain = to_json(value)
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


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except NameError as error:  # such as a type that is imported for type checkers only
        written = getattr(function, "__annotations__", {})
        names = [each for each, hint in written.items() if str(error.name) in str(hint)]
        raise TypeError(f"parameter {', '.join(names)}: {error}") from None


def _parameters(
    function: Callable[..., Any], hints: Mapping[str, Any]
) -> tuple[list[Parameter], str | None]:
    """Return the parameters that callers give, and the one that gets the ToolCall."""
    found: list[Parameter] = []
    call_argument = None
    for each in inspect.signature(function).parameters.values():
        hint = hints.get(each.name, Any)
        if hint is ToolCall or ToolCall in get_args(hint):
            call_argument = each.name
            continue
        if not found and each.name in ("self", "cls") and each.name not in hints:
            raise TypeError(f"{function.__qualname__} is a method: offer it bound to its object")
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise TypeError(f"{each} cannot be passed by name")
        default = MISSING if each.default is each.empty else each.default
        found.append(Parameter.of(each.name, hint, default))
    return found, call_argument


def _message(error: Exception) -> str:
    """Return what a caller is told of an exception: its text, or its name where that says more."""
    text = str(error)
    return (
        f"{type(error).__name__}: {text}"
        if isinstance(error, KeyError)
        else text or type(error).__name__
    )
