"""Decorators for tools of MCP servers, with the real server and client of the package `mcp`."""

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NewType, Optional

import anyio
import pytest

from mcpp.transient import (
    Conversation,
    Hint,
    Mark,
    Scratch,
    TransientRule,
    Workflow,
    consumed,
    mark_by_rule,
    read_hints,
    read_mark,
    summarize,
    transient,
    with_context_hints,
)

pytest.importorskip("mcp")

from mcp import Client
from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent

from mcpp.transient import decorators


@dataclass
class StoredActivity:
    """A record."""

    id: int
    title: str


def activities(count: int) -> list[StoredActivity]:
    return [StoredActivity(72 + n, f"activity {n}") for n in range(count)]


def call(server: MCPServer, tool: str, **arguments: Any) -> CallToolResult:
    """Call a tool through a real client."""

    async def run() -> CallToolResult:
        async with Client(server) as client:
            return await client.call_tool(tool, arguments)

    return anyio.run(run)


def tool_of(server: MCPServer, name: str) -> Any:
    async def run() -> Any:
        async with Client(server) as client:
            return next(tool for tool in (await client.list_tools()).tools if tool.name == name)

    return anyio.run(run)


def plain_and_marked(function: Callable[..., Any], decorate: Any) -> tuple[MCPServer, MCPServer]:
    plain, marked = MCPServer("plain"), MCPServer("marked")
    plain.tool(name="tool")(function)
    marked.tool(name="tool")(decorate(function))
    return plain, marked


def as_list(count: int) -> list[StoredActivity]:
    """Return activities."""
    return activities(count)


async def as_object(count: int, ctx: Context[Any, Any]) -> dict[str, Any]:
    """Return an object."""
    return {"activities": [vars(one) for one in activities(count)], "page": 1}


def as_text(count: int) -> str:
    """Return text."""
    return "\n".join(one.title for one in activities(count)) * 100


def as_result(count: int) -> CallToolResult:
    """Return a result."""
    return CallToolResult(content=[TextContent(type="text", text="word " * 100 * count)])


def unannotated(count):  # type: ignore[no-untyped-def]
    """Return anything."""
    return [{"id": n} for n in range(count)]


@pytest.mark.rule("T-27")
@pytest.mark.parametrize("function", [as_list, as_object, as_text, as_result, unannotated])
def test_a_decorated_tool_has_the_same_schemas_and_content_and_a_mark(function: Any) -> None:
    plain, marked = plain_and_marked(function, decorators.transient("activity"))
    assert tool_of(plain, "tool") == tool_of(marked, "tool")
    expected, found = call(plain, "tool", count=8), call(marked, "tool", count=8)
    assert found.content == expected.content
    assert found.structured_content == expected.structured_content
    assert read_mark(found).transient
    assert not read_mark(call(marked, "tool", count=0)).transient


@pytest.mark.rule("T-27")
@pytest.mark.parametrize("decorator", [decorators.transient, decorators.consumes])
def test_the_options_of_the_tool_are_given_to_the_decorator_too(decorator: Any) -> None:
    plain, marked = MCPServer("plain"), MCPServer("marked")
    plain.tool(name="tool", structured_output=False)(as_list)
    decorated = decorator(structured_output=False)(as_list)
    marked.tool(name="tool", structured_output=False)(decorated)
    expected, found = call(plain, "tool", count=8), call(marked, "tool", count=8)
    assert found.content == expected.content
    assert found.structured_content is expected.structured_content is None
    assert read_mark(found) != Mark()


def as_json_text(count: int) -> str:
    return json.dumps([{"id": n} for n in range(72, 72 + count)])


def as_markdown(count: int) -> str:
    rows = "".join(f"| {n} | some |\n" for n in range(72, 72 + count))
    return f"| id | title |\n|---|---|\n{rows}"


def as_csv(count: int) -> str:
    return "id,title\n" + "".join(f"{n},some\n" for n in range(72, 72 + count))


@pytest.mark.rule("T-03", "T-27")
@pytest.mark.parametrize("function", [as_json_text, as_markdown, as_csv])
def test_records_in_a_text_count_though_servers_wrap_it_as_structured_content(
    function: Any,
) -> None:
    server = MCPServer("crm")
    server.tool(name="tool")(decorators.transient("activity")(function))
    found = call(server, "tool", count=8)
    assert isinstance(found.structured_content["result"], str)
    assert read_mark(found).summary == "8 activity records (IDs: 72, 73, 74…)"


@pytest.mark.rule("T-27")
def test_the_decorator_takes_a_rule_or_nothing() -> None:
    server = MCPServer("crm")
    server.tool(name="plain")(decorators.transient(as_list))
    server.tool(name="few")(decorators.transient(TransientRule(min_records=2))(as_list))
    assert summarize(call(server, "plain", count=8)) == "8 records (IDs: 72, 73, 74…)"
    assert read_mark(call(server, "plain", count=8)).summary == "8 records (IDs: 72, 73, 74…)"
    assert not read_mark(call(server, "plain", count=2)).transient
    assert read_mark(call(server, "few", count=2)).transient


@pytest.mark.rule("T-27")
def test_a_consumer_is_marked_unless_it_fails() -> None:
    server = MCPServer("crm")

    @server.tool()
    @decorators.consumes
    def store(finding: str) -> str:
        if not finding:
            raise ValueError("nothing to store")
        return f"Stored {finding}"

    @server.tool()
    @decorators.consumes("call_ids")
    async def store_named(finding: str, call_ids: list[str] | None = None) -> CallToolResult:
        is_error = finding == "bad"
        return CallToolResult(content=[TextContent(type="text", text="ok")], is_error=is_error)

    assert read_mark(call(server, "store", finding="x")) == Mark(consumed=True)
    assert call(server, "store", finding="").is_error
    assert not read_mark(call(server, "store", finding="")).consumed
    named = call(server, "store_named", finding="x", call_ids=["c1"])
    assert read_mark(named) == Mark(consumed=True, consumes=("c1",))
    assert read_mark(call(server, "store_named", finding="x")) == Mark(consumed=True)
    assert not read_mark(call(server, "store_named", finding="bad")).consumed


@pytest.mark.rule("T-27")
def test_both_orders_of_transient_and_consumes_keep_both_marks() -> None:
    server = MCPServer("crm")
    server.tool(name="one")(decorators.transient("activity")(decorators.consumes(as_list)))
    server.tool(name="two")(decorators.consumes(decorators.transient("activity")(as_list)))
    expected = Mark(True, "8 activity records (IDs: 72, 73, 74…)", consumed=True)
    assert read_mark(call(server, "one", count=8)) == expected
    assert read_mark(call(server, "two", count=8)) == expected


@pytest.mark.rule("T-20", "T-27")
def test_both_orders_of_lean_and_consumes_consume_once() -> None:
    scratch = Scratch()
    for decorated in (
        decorators.lean(scratch)(decorators.consumes(as_list)),
        decorators.consumes(decorators.lean(scratch)(as_list)),
    ):
        server = MCPServer("crm")
        server.tool(name="tool")(decorated)
        server.tool()(decorators.redeem_tool(scratch))
        answer = call(server, "tool", count=8)
        assert read_mark(answer) == Mark(consumed=True)
        ref = answer.structured_content["scratch_ref"]
        assert read_mark(call(server, "redeem_scratch", scratch_ref=ref)) == Mark()


@pytest.mark.rule("T-27")
def test_mistakes_are_told_when_decorating() -> None:
    with pytest.raises(TypeError, match="no parameter 'ids'"):
        decorators.consumes("ids")(as_text)
    for decorator in (decorators.transient, decorators.consumes):
        with pytest.raises(TypeError, match="have no option 'summary'"):
            decorator(structured_output=False, summary="8 records")(as_text)


CallId = NewType("CallId", str)


@pytest.mark.rule("T-27")
@pytest.mark.parametrize(
    "annotation",
    [str, "str", str | None, Optional[str], Annotated[str, "an id"], CallId],  # noqa: UP045
)
def test_a_parameter_of_ids_that_is_text_is_told_when_decorating(annotation: Any) -> None:
    def store(call_ids: Any) -> str:
        return "Stored"

    store.__annotations__["call_ids"] = annotation
    with pytest.raises(TypeError, match="'call_ids' of store must be a list of ids"):
        decorators.consumes("call_ids")(store)


@pytest.mark.rule("T-27")
@pytest.mark.parametrize("is_async", [False, True])
def test_a_single_id_is_read_and_another_value_refused_before_the_tool_runs(
    is_async: bool,
) -> None:
    stored: list[Any] = []

    def store(call_ids: str | list[str] | Any) -> str:
        stored.append(call_ids)
        return "Stored"

    async def store_async(call_ids: Any) -> str:
        return store(call_ids)

    server = MCPServer("crm")
    server.tool(name="store")(decorators.consumes("call_ids")(store_async if is_async else store))
    named = call(server, "store", call_ids="call-1")
    assert read_mark(named) == Mark(consumed=True, consumes=("call-1",))
    assert stored == ["call-1"]
    for wrong in (5, [5], ["call-1", None], {"call-1": "call-2"}):
        assert call(server, "store", call_ids=wrong).is_error
    assert stored == ["call-1"]


@pytest.mark.rule("T-20")
@pytest.mark.rule("T-27")
@pytest.mark.parametrize("function", [as_list, as_object, as_text])
def test_a_lean_tool_returns_a_reference_that_another_tool_redeems(function: Any) -> None:
    scratch = Scratch()
    plain, server = plain_and_marked(function, decorators.lean(scratch))
    server.tool()(decorators.redeem_tool(scratch))
    lean = call(server, "tool", count=8)
    assert "activity 3" not in str(lean)
    assert tool_of(server, "tool").input_schema == tool_of(plain, "tool").input_schema
    ref = lean.structured_content["scratch_ref"]
    redeemed = call(server, "redeem_scratch", scratch_ref=ref)
    expected = call(plain, "tool", count=8)
    assert redeemed.content == expected.content
    assert redeemed.structured_content == expected.structured_content
    assert call(server, "redeem_scratch", scratch_ref="other").is_error


@pytest.mark.rule("T-27")
def test_a_stated_signature_may_have_texts_as_annotations() -> None:
    def tool(count: Any, ctx: Any) -> Any:
        return activities(count)

    names = {"count": "int", "ctx": "Context[Any, Any]"}
    parameters = [
        inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=text)
        for name, text in names.items()
    ]
    # As under `from __future__ import annotations`, after another decorator.
    tool.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        parameters, return_annotation="list[StoredActivity]"
    )
    server = MCPServer("crm")
    server.tool(name="lean")(decorators.lean(Scratch())(tool))
    assert list(tool_of(server, "lean").input_schema["properties"]) == ["count"]
    assert "scratch_ref" in call(server, "lean", count=8).structured_content


@pytest.mark.rule("T-04")
@pytest.mark.rule("T-27")
def test_a_workflow_is_served_with_its_hints() -> None:
    hint = {"lifecycle": "transient", "consumedBy": "store"}
    workflow = Workflow([{"order": 1, "title": "Fetch", "tool": "search", "contextHint": hint}])
    server = MCPServer("crm")
    server.tool()(decorators.workflow_tool(workflow))
    found = call(server, "get_workflow_step", order=1)
    assert read_hints(found) == [Hint("search", "store", 1)]
    shown = [block.model_dump(exclude_none=True) for block in found.content]
    assert shown == workflow.get_workflow_step(1)["content"]
    assert call(server, "get_workflow_step", order=2).is_error
    assert tool_of(server, "get_workflow_step").output_schema is None


@pytest.mark.rule("T-01")
@pytest.mark.rule("T-27")
def test_helpers_take_and_return_the_packages_results() -> None:
    given = as_result(8)
    marked = consumed(with_context_hints(transient(given, "s"), [Hint("a", "b")]), ["c"])
    assert isinstance(marked, CallToolResult)
    assert read_mark(marked) == Mark(True, "s", True, ("c",))
    assert read_hints(marked) == [Hint("a", "b")]
    assert given.meta is None
    assert isinstance(mark_by_rule(given), CallToolResult)
    assert isinstance(Scratch().keep(given), CallToolResult)


@pytest.mark.rule("T-25")
@pytest.mark.rule("T-27")
def test_a_conversation_with_a_real_server_collapses_its_pages() -> None:
    server = MCPServer("crm")
    server.tool(name="search")(decorators.transient("activity")(as_list))
    server.tool(name="store")(decorators.consumes(as_text))
    conversation = Conversation()
    messages: list[dict[str, Any]] = []
    for id, tool, count in (("c1", "search", 15), ("c2", "store", 1)):
        result = call(server, tool, count=count)
        conversation.add_result(tool, id, result)
        use = {"type": "tool_use", "id": id, "name": tool, "input": {"count": count}}
        content = [block.model_dump() for block in result.content]
        block = {"type": "tool_result", "tool_use_id": id, "content": content}
        messages += [{"role": "assistant", "content": [use]}, {"role": "user", "content": [block]}]
    shown = conversation.collapse(messages)
    text = shown[1]["content"][0]["content"][0]["text"]
    assert text.endswith("> 15 activity records (IDs: 72, 73, 74…)")
