"""Types of parameters and results: one schema and one kind of error, whatever library they use."""

from dataclasses import MISSING, dataclass
from enum import Enum
from typing import Annotated, Any, Literal, TypedDict

import jsonschema
import msgspec
import pytest

from mcpp.protocol.value_types import InvalidValueError, Parameter, Parameters, ValueType, to_json

pydantic = pytest.importorskip("pydantic")
annotated_types = pytest.importorskip("annotated_types")


class Genre(Enum):
    NOVEL = "novel"
    POETRY = "poetry"


@dataclass
class PlainBook:
    title: str
    pages: int = 1


class DictBook(TypedDict):
    title: str
    pages: int


class StructBook(msgspec.Struct):
    title: str
    pages: int = 1


class ModelBook(pydantic.BaseModel):  # type: ignore[name-defined, misc]
    title: str
    pages: int = 1
    sequel: "ModelBook | None" = None


@dataclass
class Bounded:
    pages: Annotated[int, pydantic.Field(ge=1)]


BOOK = {"title": "Momo", "pages": 300}


@pytest.mark.parametrize("hint", [PlainBook, DictBook, StructBook, ModelBook])
def test_every_library_reads_the_same_value_and_writes_it_again(hint: Any) -> None:
    found = ValueType.of(hint)
    jsonschema.validate(BOOK, found.schema)
    read = found.read(BOOK)
    assert isinstance(read, dict if hint is DictBook else hint)
    assert BOOK.items() <= to_json(read).items()


@pytest.mark.parametrize("hint", [PlainBook, DictBook, StructBook, ModelBook])
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"title": 1, "pages": 1}, ".title"),
        ({"title": "x", "pages": "1"}, ".pages"),
        ({"title": "x", "pages": 1.5}, ".pages"),
        ([], ""),
    ],
)
def test_every_library_refuses_the_same_values_at_the_same_place(
    hint: Any, value: Any, path: str
) -> None:
    found = ValueType.of(hint)
    assert not jsonschema.Draft202012Validator(found.schema).is_valid(value)
    with pytest.raises(InvalidValueError) as caught:
        found.read(value)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("foreign", "own"),
    [
        (pydantic.Field(ge=1, le=9), msgspec.Meta(ge=1, le=9)),
        (pydantic.Field(gt=1, description="d"), msgspec.Meta(gt=1, description="d")),
        (pydantic.Field(multiple_of=2), msgspec.Meta(multiple_of=2)),
        (annotated_types.Ge(1), msgspec.Meta(ge=1)),
        (annotated_types.Interval(ge=1, lt=5), msgspec.Meta(ge=1, lt=5)),
    ],
)
def test_constraints_of_other_libraries_have_the_same_schema_and_errors(
    foreign: Any, own: Any
) -> None:
    one, other = ValueType.of(Annotated[int, foreign]), ValueType.of(Annotated[int, own])
    assert one.schema == other.schema
    errors = []
    for found in (one, other):
        for value in (-10, 1, 11):
            try:
                errors.append((found is one, value, found.read(value)))
            except InvalidValueError as error:
                errors.append((found is one, value, error.reason))
    assert [each[1:] for each in errors if each[0]] == [each[1:] for each in errors if not each[0]]


@pytest.mark.parametrize(
    ("hint", "good", "bad", "path"),
    [
        (list[Annotated[int, pydantic.Field(ge=1)]], [1], [1, 0], "[1]"),
        (Annotated[str, pydantic.Field(pattern="^a+$")], "aa", "b", ""),
        (dict[str, ModelBook], {"a": BOOK}, {"a": {"title": 1}}, ".a.title"),
        (ModelBook | None, None, {"title": 1}, ".title"),
        (Bounded, {"pages": 1}, {"pages": 0}, ".pages"),
        (Genre, "novel", "drama", ""),
        (Literal["a", 1], "a", "b", ""),
        (int | str | list[int], [1], [None], "[0]"),
    ],
)
def test_nested_hints_are_read_and_refused_as_their_schema_says(
    hint: Any, good: Any, bad: Any, path: str
) -> None:
    found = ValueType.of(hint)
    jsonschema.validate(good, found.schema)
    found.read(good)
    assert not jsonschema.Draft202012Validator(found.schema).is_valid(bad)
    with pytest.raises(InvalidValueError) as caught:
        found.read(bad)
    assert caught.value.path.startswith(path)


@pytest.mark.rule("E-21")
def test_a_key_that_the_caller_chose_is_not_quoted_in_a_path() -> None:
    with pytest.raises(InvalidValueError) as caught:
        ValueType.of(dict[str, ModelBook]).read({"a\nb": {"title": 1}})
    assert caught.value.path == ""


@pytest.mark.parametrize(
    "hint", [object, complex, Annotated[int, annotated_types.Predicate(bool)], list[object]]
)
def test_a_hint_that_json_cannot_carry_is_refused_with_the_parameters_name(hint: Any) -> None:
    with pytest.raises(TypeError, match="parameter thing: "):
        Parameters("f", [Parameter.of("thing", hint, MISSING)])


def test_a_field_as_default_is_a_constraint_and_a_default() -> None:
    limit = Parameter.of("limit", int, pydantic.Field(10, ge=1))
    required = Parameter.of("size", int, pydantic.Field(ge=1))
    names = Parameter.of("names", list[str], pydantic.Field(default_factory=list))
    found = Parameters("f", [limit, required, names])
    assert found.schema["required"] == ["size"]
    assert found.read({"size": 1}) == {"limit": 10, "size": 1, "names": []}
    with pytest.raises(InvalidValueError) as caught:
        found.read({"size": 1, "limit": 0})
    assert caught.value.path == ".limit"


def test_models_and_other_types_share_one_schema() -> None:
    found = Parameters(
        "f",
        [
            Parameter.of("model", ModelBook, MISSING),
            Parameter.of("plain", list[PlainBook], MISSING),
            Parameter.of("again", ModelBook | None, None),
        ],
    )
    jsonschema.Draft202012Validator.check_schema(dict(found.schema))
    value = {"model": BOOK | {"sequel": BOOK}, "plain": [BOOK]}
    jsonschema.validate(value, found.schema)
    read = found.read(value)
    assert read["model"].sequel.pages == 300
    assert read["plain"] == [PlainBook("Momo", 300)]
    assert read["again"] is None
