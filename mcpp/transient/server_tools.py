"""Signatures of tools, and results as servers of the packages `mcp` and `fastmcp` make them."""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import copy_context
from typing import Any, Final

_FASTMCP_CALL: Final = "fastmcp.server.context"  # the module of the type


def signature_of(function: Any) -> inspect.Signature:
    """Return the signature of a function, with the values of annotations that are texts."""
    signature = inspect.signature(function, eval_str=True)

    # That leaves the texts of a stated `__signature__`, as other decorators and servers set it.
    def stated() -> None: ...

    stated.__annotations__ = annotations_of(signature)
    names = getattr(inspect.unwrap(function), "__globals__", None)
    values = inspect.get_annotations(stated, globals=names, eval_str=True)
    return signature.replace(
        parameters=[
            one.replace(annotation=values.get(name, one.annotation))
            for name, one in signature.parameters.items()
        ],
        return_annotation=values.get("return", signature.return_annotation),
    )


def annotations_of(signature: inspect.Signature) -> dict[str, Any]:
    """Return the annotations of a signature, as a function has them."""
    stated = {name: one.annotation for name, one in signature.parameters.items()}
    stated["return"] = signature.return_annotation
    return {name: one for name, one in stated.items() if one is not inspect.Signature.empty}


def converter(function: Any, annotation: Any, options: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return the conversion of return values by the server that calls the function.

    It is that of a tool of the server's own class, with the function's annotation. Raises TypeError
    for options that no server's tools have, before a tool is ever called.
    """
    _check_options(options)

    def stub() -> None: ...

    name = getattr(function, "__name__", "")
    stub.__name__ = name if name.isidentifier() else "tool"  # servers name it in their errors
    signature = inspect.Signature(return_annotation=annotation)
    stub.__signature__ = signature  # type: ignore[attr-defined]
    stub.__annotations__ = annotations_of(signature)
    final = _final_types()
    tools: dict[Any, Any] = {}  # by class

    def convert(value: Any) -> Any:
        if isinstance(value, final):
            return value
        tool_class = _calling_tool_class()
        if tool_class not in tools:
            tools[tool_class] = tool_class.from_function(stub, **options)
        return _as_result(_converted(tools[tool_class], value))

    return convert


def result_type() -> Any:
    """Return `CallToolResult`; importing it takes a while, and decorators are optional."""
    from mcp.types import CallToolResult

    return CallToolResult


def _calling_tool_class() -> Any:
    """Return the class of the tools of the server that calls: fastmcp, or else `mcp`."""
    # Only a call of fastmcp sets this variable; to import fastmcp for it would take 0.4 s.
    is_fastmcp = any(type(one).__module__ == _FASTMCP_CALL for one in copy_context().values())
    return _fastmcp_tool_class() if is_fastmcp else _mcp_tool_class()


def _fastmcp_tool_class() -> Any:
    from fastmcp.tools import Tool

    return Tool


def _mcp_tool_class() -> Any:
    try:
        from mcp.server.mcpserver.tools import Tool
    except ModuleNotFoundError:  # mcp 1
        from mcp.server.fastmcp.tools import Tool  # type: ignore[import-not-found,no-redef]
    return Tool


def _check_options(options: Mapping[str, Any]) -> None:
    """Raise TypeError for options that no server's tools have."""
    unknown = set(options)
    for tool_class in (_mcp_tool_class, _fastmcp_tool_class):
        if unknown:  # else fastmcp need not be imported
            with suppress(ModuleNotFoundError):
                unknown -= inspect.signature(tool_class().from_function).parameters.keys()
    if unknown:
        raise TypeError(f"tools of servers have no option {', '.join(map(repr, sorted(unknown)))}")


def _converted(tool: Any, value: Any) -> Any:
    if hasattr(tool, "fn_metadata"):  # mcp
        return tool.fn_metadata.convert_result(value)
    values = list(value) if inspect.isgenerator(value) else value  # as its `run` does
    return tool.convert_result(values).to_mcp_result()


def _as_result(made: Any) -> Any:
    """Return what a server made as a `CallToolResult`."""
    if not isinstance(made, list | tuple):
        return made
    # The content, or a pair of the content and the structured content.
    content, structured = made if isinstance(made, tuple) else (made, None)
    blocks = [block.model_dump(mode="json", by_alias=True) for block in content]
    return result_type().model_validate({"content": blocks, "structuredContent": structured})


def _final_types() -> tuple[Any, ...]:
    """Return the types that servers do not convert: a result, and a question to the user."""
    from mcp import types

    question = getattr(types, "InputRequiredResult", None)  # not in mcp 1
    return tuple(filter(None, (types.CallToolResult, question)))
