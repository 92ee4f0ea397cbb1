"""Decorators for the tools of MCP servers written with the package `mcp` or with `fastmcp`.

    from mcpp.transient.decorators import consumes, lean, transient

    @server.tool()
    @transient("activity")
    def search_records(page: int) -> list[Record]: ...

    @server.tool()
    @consumes
    def store_analysis_memory(finding: str) -> str: ...

A decorated tool returns a `CallToolResult`: what the server would have made of the function's own
return value, with the marks. The tool's schemas stay as they are.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from types import MappingProxyType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, overload

from mcpp.transient import marks
from mcpp.transient.results import as_json
from mcpp.transient.scratch import Scratch
from mcpp.transient.server_tools import annotations_of, converter, result_type, signature_of
from mcpp.transient.summaries import TransientRule, mark_by_rule
from mcpp.transient.workflow import Workflow

Function = TypeVar("Function", bound=Callable[..., Any])


@overload
def transient(rule: Function) -> Function: ...
@overload
def transient(
    rule: TransientRule | str | bool = True, **options: Any
) -> Callable[[Function], Function]: ...
def transient(rule: Any = True, **options: Any) -> Any:
    """Mark large results of a tool as transient (T-03): `@transient`, `@transient("activity")`.

    The argument is the noun for the records in the summary, or a `TransientRule`. `options` are
    those of the server's tool that change its results, such as `structured_output=False`; of
    several decorators, the one next to the function takes them.

    Raises:
        TypeError: when decorating, for options that no server's tools have.
    """
    if callable(rule):
        return _decorated(rule, mark_by_rule)
    return lambda function: _decorated(
        function, lambda result: mark_by_rule(result, rule), options=options
    )


@overload
def consumes(ids: Function) -> Function: ...
@overload
def consumes(ids: str | None = None, **options: Any) -> Callable[[Function], Function]: ...
def consumes(ids: Any = None, **options: Any) -> Any:
    """Mark results of a tool as having consumed earlier ones.

    `@consumes` consumes the oldest pending result; `@consumes("call_ids")` those that the caller
    names in that parameter: a list, or a single id. A failed call consumes nothing. `options` are
    as for `transient`.

    Raises:
        TypeError: when decorating, if there is no such parameter or option, or the parameter is
            annotated as a `str`; when calling, before the function runs, if the argument is no list
            of ids.
    """
    if callable(ids):
        return _decorated(ids, _consumed)
    return lambda function: _decorated(function, _consumed, named_by=ids, options=options)


def lean(scratch: Scratch, summary: str | None = None) -> Callable[[Function], Function]:
    """Keep a tool's data at the server: the model gets a summary and a `scratch_ref` (T-20).

    Offer `redeem_tool(scratch)` as a tool too. A lean tool has no output schema: its structured
    content is the summary and the reference.
    """
    return lambda function: _decorated(
        function, lambda result: scratch.keep(result, summary), keeps_schema=False
    )


def redeem_tool(scratch: Scratch) -> Callable[[str], Any]:
    """Return the tool `redeem_scratch`, which returns the data behind a `scratch_ref`."""

    def redeem_scratch(scratch_ref: str) -> Any:
        """Return the data behind a scratch_ref."""
        return scratch.redeem(scratch_ref)

    return _returning_result(redeem_scratch)


def workflow_tool(workflow: Workflow) -> Callable[[int], Any]:
    """Return the tool `get_workflow_step`, which returns a step with its hints (T-04)."""

    def get_workflow_step(order: int) -> Any:
        """Return the instructions of a workflow step, or of all steps of its loop."""
        return workflow.get_workflow_step(order)

    return _returning_result(get_workflow_step)


def _returning_result(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function with its JSON result as a `CallToolResult`."""
    result_class = result_type()

    @functools.wraps(function)
    def returning(*arguments: Any, **named: Any) -> Any:
        return result_class.model_validate(function(*arguments, **named))

    _state_result(returning, inspect.signature(function, eval_str=True))
    return returning


def _consumed(result: Any, ids: Iterable[str] | None = None) -> Any:
    return result if as_json(result).get("isError") else marks.consumed(result, ids)


def _decorated(
    function: Any,
    mark: Callable[..., Any],
    *,
    named_by: str | None = None,
    keeps_schema: bool = True,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Any:
    """Return the function with its return value converted to a result, and marked."""
    if not callable(function):
        raise TypeError(f"{function!r} is not a function")
    signature = signature_of(function)
    if named_by is not None and named_by not in signature.parameters:
        raise TypeError(f"{function.__name__} has no parameter {named_by!r}")
    if named_by is not None and _is_text(signature.parameters[named_by].annotation):
        raise TypeError(f"parameter {named_by!r} of {function.__name__} must be a list of ids")
    result_class = result_type()
    convert = converter(function, signature.return_annotation, options)

    def read_ids(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        # Before the function runs: an error afterwards would hide what it has done.
        if named_by is None:
            return ()
        return (_as_ids(signature.bind(*arguments, **named).arguments.get(named_by), named_by),)

    def finish(value: Any, ids: tuple[Any, ...]) -> Any:
        result = convert(value)
        if not isinstance(result, result_class):  # a question to the user, not a result
            return result
        return mark(result, *ids)

    call = _collecting(function) if inspect.isasyncgenfunction(function) else function
    if inspect.iscoroutinefunction(call):

        @functools.wraps(function)
        async def decorated(*arguments: Any, **named: Any) -> Any:
            ids = read_ids(arguments, named)
            return finish(await call(*arguments, **named), ids)

    else:

        @functools.wraps(function)
        def decorated(*arguments: Any, **named: Any) -> Any:
            ids = read_ids(arguments, named)
            return finish(call(*arguments, **named), ids)

    if not keeps_schema:
        _state_result(decorated, signature)
    return decorated


def _collecting(function: Any) -> Any:
    """Return a coroutine function with the list of what an asynchronous generator yields."""

    async def collect(*arguments: Any, **named: Any) -> Any:
        return [value async for value in function(*arguments, **named)]

    return collect


def _state_result(decorated: Any, signature: inspect.Signature) -> None:
    """Annotate a wrapper as returning a result: servers refuse another schema than the result's."""
    stated = signature.replace(return_annotation=result_type())
    decorated.__signature__ = stated
    decorated.__annotations__ = annotations_of(stated)
    del decorated.__wrapped__  # servers read both


def _is_text(annotation: Any) -> bool:
    """Return whether an annotation allows a string and no list: `str`, `str | None`."""
    if get_origin(annotation) is Annotated:
        return _is_text(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        members = [one for one in get_args(annotation) if one is not type(None)]
        return all(map(_is_text, members))
    annotation = getattr(annotation, "__supertype__", annotation)  # of a NewType
    return isinstance(annotation, type) and issubclass(annotation, str)


def _as_ids(value: Any, parameter: str) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return [value]
    is_list = isinstance(value, Collection) and not isinstance(value, bytes | Mapping)
    if not is_list or not all(isinstance(one, str) for one in value):
        raise TypeError(f"{parameter} must be a list of ids, which are texts")
    return list(value)
