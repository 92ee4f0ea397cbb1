"""Tools from functions: what their hints say is what callers must give."""

import asyncio
import enum
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import pytest

from mcpp import Participant
from mcpp.agent.tools import Tool, ToolCall, as_result
from mcpp.protocol.rpc import Failure, ToolResult


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


async def everything(
    point: Point,
    colour: Colour,
    mode: Literal["fast", "slow"],
    tags: list[str] = [],  # noqa: B006
    size: Annotated[int, msgspec.Meta(gt=0)] | None = None,
    rest: Any = None,
    *,
    call: ToolCall,
) -> None:
    """Take all sorts."""


TOOL = Tool.from_function(everything)
GOOD = {"point": {"x": 1}, "colour": "red", "mode": "fast"}


def test_the_schema_is_valid_and_has_an_object_at_its_root() -> None:
    jsonschema.Draft202012Validator.check_schema(TOOL.input_schema)
    assert TOOL.input_schema["type"] == "object"
    assert TOOL.input_schema["required"] == ["point", "colour", "mode"]
    assert TOOL.call_argument == "call"


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"point": {"x": "1"}}, "$.arguments.point.x"),
        ({"colour": "blue"}, "$.arguments.colour"),
        ({"mode": "medium"}, "$.arguments.mode"),
        ({"tags": [1]}, "$.arguments.tags[0]"),
        ({"size": 0}, "$.arguments.size"),
        ({"other": 1}, "$.arguments"),
    ],
)
def test_schema_and_tool_refuse_the_same_arguments(changes: dict[str, Any], path: str) -> None:
    arguments = GOOD | changes
    assert not jsonschema.Draft202012Validator(TOOL.input_schema).is_valid(arguments)
    with pytest.raises(Failure) as caught:
        TOOL.read_arguments(arguments)
    assert caught.value.data == {"path": path}


def test_arguments_come_as_the_types_that_were_asked_for() -> None:
    jsonschema.validate(GOOD, TOOL.input_schema)
    given = TOOL.read_arguments(GOOD)
    assert given["point"] == Point(1, 0)
    assert given["colour"] is Colour.RED


def test_an_integer_may_be_written_as_json_schema_allows_it() -> None:
    arguments = GOOD | {"size": 5.0, "rest": [0.5, 2.0]}
    jsonschema.validate(arguments, TOOL.input_schema)
    given = TOOL.read_arguments(arguments)
    assert given["size"] == 5
    assert type(given["size"]) is int
    assert given["rest"] == [0.5, 2.0]
    with pytest.raises(Failure):
        TOOL.read_arguments(GOOD | {"size": 5.5})


def test_a_default_that_can_change_is_not_shared_between_calls() -> None:
    TOOL.read_arguments(GOOD)["tags"].append("mine")
    assert TOOL.read_arguments(GOOD)["tags"] == []


def test_a_function_that_cannot_be_called_by_name_is_refused() -> None:
    def spread(*paths: str) -> None: ...

    with pytest.raises(TypeError, match="spread"):
        Tool.from_function(spread)


def test_a_hint_that_json_cannot_carry_is_refused_when_the_tool_is_made() -> None:
    class Opaque:
        pass

    def take(thing: Opaque) -> None: ...

    take.__annotations__["thing"] = Opaque
    with pytest.raises(TypeError, match="take"):
        Tool.from_function(take)


@pytest.mark.parametrize(
    ("value", "text", "read"),
    [
        ("plain", "plain", "plain"),
        (None, "", ""),
        (3, "3", 3),
        ([1, 2], "[1,2]", [1, 2]),
        ({"result": 1}, '{"result":1}', {"result": 1}),
        (Point(1, 2), '{"x":1,"y":2}', {"x": 1, "y": 2}),
    ],
)
def test_what_a_tool_returns_reads_back(value: Any, text: str, read: Any) -> None:
    result = ToolResult.from_json(as_result(value).to_json())
    assert (result.text, result.value) == (text, read)


@pytest.mark.parametrize("value", [None, 3, "text", {"content": "no list"}, {"isError": "yes"}])
def test_a_foreign_result_of_another_shape_is_still_read(value: Any) -> None:
    assert isinstance(ToolResult.from_json(value), ToolResult)


@pytest.mark.parametrize("name", ["x" * 500, "é" * 100])
def test_a_name_that_does_not_fit_into_a_kind_is_an_error(name: str) -> None:
    with pytest.raises(TypeError, match="too long for a kind"):
        Tool.from_function(lambda: None, name)


def test_a_function_without_a_name_is_asked_for_one() -> None:
    with pytest.raises(TypeError, match="name="):
        Tool.from_function(partial(print, "x"))


def test_the_call_may_be_annotated_as_optional() -> None:
    def search(query: str, call: ToolCall | None = None) -> str:
        return query

    tool = Tool.from_function(search)
    assert tool.call_argument == "call"
    assert list(tool.input_schema["properties"]) == ["query"]


def test_a_tool_that_fails_with_a_key_error_names_the_error() -> None:
    async def look_up() -> str:
        return {"a": "b"}["k"]

    result = asyncio.run(Tool.from_function(look_up).run({}, None))  # type: ignore[arg-type]
    assert (result.is_error, result.text) == (True, "KeyError: 'k'")


def test_a_method_that_is_not_bound_is_refused() -> None:
    class Library:
        def borrow(self, title: str) -> str:
            return title

    with pytest.raises(TypeError, match=r"tool borrow: .*Library\.borrow is a method"):
        Tool.from_function(Library.borrow)
    assert list(Tool.from_function(Library().borrow).input_schema["properties"]) == ["title"]


def test_two_tools_of_one_name_are_refused() -> None:
    agent = Participant("a")
    agent.tool(name="x")(lambda: None)
    with pytest.raises(ValueError, match="there is a tool 'x' already"):
        agent.tool(name="x")(lambda: None)


def test_a_resource_whose_function_does_not_take_its_parameters_is_refused() -> None:
    with pytest.raises(TypeError, match="has to take day"):
        Participant("a").resource("memo://{day}")(lambda: "")


def test_a_result_that_is_not_as_annotated_is_an_error() -> None:
    def lie() -> list[int]:
        return ["one"]  # type: ignore[list-item]

    result = asyncio.run(Tool.from_function(lie).run({}, None))  # type: ignore[arg-type]
    assert (result.is_error, result.text) == (
        True,
        "the result is not as annotated at $.result[0]: Expected `int`, got `str`",
    )


def test_a_type_that_is_not_defined_is_reported_with_its_parameter() -> None:
    def take(first: int, second: "list[Missing]") -> None:  # type: ignore[name-defined]  # noqa: F821
        pass

    with pytest.raises(TypeError, match="tool take: parameter second: name 'Missing'"):
        Tool.from_function(take)
