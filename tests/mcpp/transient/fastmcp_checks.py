"""Decorated tools of a server of fastmcp. Runs where fastmcp is installed.

`tests/agents/adapters/test_frameworks.py` runs this file in an environment of its own.
"""

import base64
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
import pytest
from fastmcp import Client, FastMCP
from fastmcp.tools import ToolResult
from fastmcp.utilities.types import Image
from pydantic import BaseModel

from mcpp.transient import Hint, Mark, Scratch, Workflow, WorkflowStep, read_hints, read_mark
from mcpp.transient.decorators import consumes, lean, redeem_tool, transient, workflow_tool
from tests.mcpp.prompts.logs import png

pytestmark = pytest.mark.anyio

TEXT = " ".join(f"word {n}" for n in range(600))


def page() -> dict:  # type: ignore[type-arg]
    return {"records": [{"id": n} for n in range(20)]}


async def rows() -> list[dict[str, int]]:
    return [{"id": n} for n in range(15)]


def picture() -> Image:
    return Image(data=base64.b64decode(png(16, 16)), format="png")


def mixed() -> list[Any]:
    return [TEXT, picture()]


def ready() -> ToolResult:
    return ToolResult(content=TEXT, structured_content={"ok": True})


def generated() -> Iterator[str]:
    yield TEXT
    yield TEXT


async def generated_later() -> AsyncIterator[str]:
    yield TEXT
    yield TEXT


def unannotated():  # type: ignore[no-untyped-def]
    return {"records": [{"id": n} for n in range(20)]}


class Row(BaseModel):
    id: int


def stated() -> Any:
    return [Row(id=n) for n in range(15)]


# As under `from __future__ import annotations`, after another decorator.
stated.__signature__ = inspect.Signature(return_annotation="list[Row]")  # type: ignore[attr-defined]
stated.__annotations__ = {"return": "list[Row]"}

TOOLS = [page, rows, picture, mixed, ready, generated, generated_later, unannotated, stated]


async def call(function: Callable[..., Any], **options: Any) -> tuple[Any, Any]:
    """Return a tool's definition and the result of a call."""
    server = FastMCP("records")
    server.tool(function, name="tool", **options)
    async with Client(server) as client:
        (tool,) = await client.list_tools()
        return tool, await client.call_tool_mcp("tool", {})


@pytest.mark.rule("T-27")
@pytest.mark.parametrize("decorate", [transient, consumes])
@pytest.mark.parametrize("function", TOOLS)
async def test_a_decorated_tool_returns_what_fastmcp_makes_of_it(
    function: Any, decorate: Any
) -> None:
    plain_tool, plain = await call(function)
    tool, marked = await call(decorate(function))
    assert tool == plain_tool
    assert marked.content == plain.content
    assert marked.structured_content == plain.structured_content
    expected = (
        Mark(consumed=True) if decorate is consumes else Mark(transient=function is not picture)
    )
    assert msgspec.structs.replace(read_mark(marked), summary=None) == expected


@pytest.mark.rule("T-27")
async def test_the_options_of_a_tool_of_fastmcp_are_given_to_the_decorator_too() -> None:
    _, plain = await call(rows, output_schema=None)
    _, marked = await call(transient("row", output_schema=None)(rows), output_schema=None)
    assert marked.content == plain.content
    assert marked.structured_content is plain.structured_content is None
    assert read_mark(marked).summary == "15 row records (IDs: 0, 1, 2…)"


@pytest.mark.rule("T-20", "T-27")
async def test_a_lean_tool_of_fastmcp_is_redeemed_as_it_was() -> None:
    scratch = Scratch()
    _, plain = await call(rows)
    _, kept = await call(lean(scratch)(rows))
    redeem = redeem_tool(scratch)
    _, redeemed = await call(lambda: redeem(kept.structured_content["scratch_ref"]))
    assert redeemed.content == plain.content
    assert redeemed.structured_content == plain.structured_content


@pytest.mark.rule("T-04", "T-27")
async def test_fastmcp_serves_a_workflow_with_its_hints() -> None:
    steps = [WorkflowStep(title="Fetch", tool="search", consumed_by="store")]
    server = FastMCP("records")
    server.tool(workflow_tool(Workflow(steps)))
    async with Client(server) as client:
        result = await client.call_tool_mcp("get_workflow_step", {"order": 1})
    assert read_hints(result) == [Hint("search", "store", 1)]
