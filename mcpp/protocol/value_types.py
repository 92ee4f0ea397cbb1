"""Types of tools' parameters and results: their JSON Schema, and reading and writing values.

msgspec does the work: it knows dataclasses, typed dicts, structs, enums, literals and unions.
Constraints of pydantic (`Annotated[int, Field(ge=1)]`) are translated into msgspec's, so that both
spellings have the same schema and the same errors. A hint with a pydantic model in it is left to
pydantic, which is imported only then: such a hint comes from a module that has imported it.
"""

import dataclasses
import re
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from mcpp.protocol.rpc import normalize_numbers
from mcpp.protocol.validation import bounded_reason, path_and_reason

__all__ = ["InvalidValueError", "Parameter", "Parameters", "ValueType", "to_json"]

_is_plain: Final = re.compile(r"[A-Za-z0-9_-]{1,64}").fullmatch
_REFERENCE: Final = "#/$defs/{name}"
_CONSTRAINTS: Final = (
    "ge",
    "gt",
    "le",
    "lt",
    "multiple_of",
    "min_length",
    "max_length",
    "pattern",
)
# What else a pydantic field may ask for, which msgspec has no word for.
_UNTRANSLATED: Final = ("alias", "validation_alias", "discriminator", "json_schema_extra")


class InvalidValueError(ValueError):
    """A value is not of its type: where, as a path below the value, and why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(reason)
        self.path = path
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type that JSON values are read as. `schema` is complete, with its definitions."""

    hint: Any
    schema: Mapping[str, Any]
    _adapter: Any = None  # pydantic's, where msgspec cannot read the hint

    @classmethod
    def of(cls, hint: Any) -> "ValueType":
        """Return the type of a hint. Raises TypeError for one that JSON cannot carry."""
        if not _needs_pydantic(hint):
            translated = _translate(hint)
            return cls(translated, _schema(translated))
        import pydantic

        try:
            adapter = pydantic.TypeAdapter(hint)
            return cls(hint, adapter.json_schema(ref_template="#/$defs/{model}"), adapter)
        except pydantic.PydanticUserError as error:
            raise TypeError(str(error).partition("\n")[0]) from None

    def read(self, value: Any) -> Any:
        """Return a JSON value as this type. Raises InvalidValueError."""
        try:
            return self._read(value)
        except InvalidValueError:  # 5.0 is an integer in JSON Schema
            return self._read(normalize_numbers(value))

    def _read(self, value: Any) -> Any:
        if self._adapter is None:
            try:
                return msgspec.convert(value, self.hint)
            except msgspec.ValidationError as error:
                raise InvalidValueError(*path_and_reason(error)) from None
        import pydantic

        try:
            # As JSON, so that a date may be a text; strictly, as the schema says.
            return self._adapter.validate_json(msgspec.json.encode(value), strict=True)
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise InvalidValueError(_path(first["loc"]), bounded_reason(first["msg"])) from None


def _path(location: tuple[str | int, ...]) -> str:
    path = ""
    for step in location:
        if isinstance(step, str) and not _is_plain(step):
            break  # E-21: a key that the caller chose
        path += f"[{step}]" if isinstance(step, int) else f".{step}"
    return path


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a function: its name, its hint and its default."""

    name: str
    hint: Any
    default: Any  # what `msgspec.field` returns

    @classmethod
    def of(cls, name: str, hint: Any, default: Any) -> "Parameter":
        """Return a parameter; its default may be a pydantic `Field`, as FastMCP has them."""
        if _is_field(default):
            value, factory = default.default, default.default_factory
            hint = Annotated[hint, _without_default(default)]
            if factory is not None:
                return cls(name, hint, msgspec.field(default_factory=factory))
            return cls(name, hint, msgspec.field() if default.is_required() else _constant(value))
        return cls(name, hint, _constant(default))


class Parameters:
    """The parameters of a function: one schema, and arguments read by name."""

    def __init__(self, name: str, parameters: list[Parameter]) -> None:
        """Raises TypeError that names the parameter which JSON cannot carry."""
        self._by_pydantic: dict[str, ValueType] = {}
        fields: list[tuple[str, Any, Any]] = []
        for each in parameters:
            try:
                found = ValueType.of(each.hint)
            except TypeError as error:
                raise TypeError(f"parameter {each.name}: {error}") from None
            hint = found.hint
            if found._adapter is not None:
                self._by_pydantic[each.name] = found
                hint = Annotated[Any, msgspec.Meta(extra_json_schema=dict(found.schema))]
            fields.append((each.name, hint, each.default))
        self._struct = msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
        self._type = ValueType(self._struct, _schema(self._struct))

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema of the arguments: an object."""
        return self._type.schema

    def read(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return validated arguments by name. Raises InvalidValueError."""
        struct = self._type.read(arguments)
        given = {name: getattr(struct, name) for name in struct.__struct_fields__}
        for name, found in self._by_pydantic.items():
            if name in arguments:
                try:
                    given[name] = found.read(arguments[name])
                except InvalidValueError as error:
                    raise InvalidValueError(f".{name}{error.path}", error.reason) from None
        return given


def to_json(value: Any) -> Any:
    """Return a value as plain JSON values, models of pydantic included."""
    return msgspec.to_builtins(value, enc_hook=encode_model)


def encode_model(value: Any) -> Any:
    """Return a pydantic model as plain values. Raises NotImplementedError for anything else."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise NotImplementedError(f"{type(value).__name__} cannot be encoded as JSON")
    return dump(mode="json", by_alias=True)


# --- hints ----------------------------------------------------------------------------------------


def _constant(default: Any) -> Any:
    if default is dataclasses.MISSING:
        return msgspec.field()
    if isinstance(default, list | dict | set):
        copied = type(default)
        return msgspec.field(default_factory=lambda: copied(default))
    return msgspec.field(default=default)


def _is_field(value: Any) -> bool:
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic")


def _without_default(field: Any) -> Any:
    import pydantic

    kept = {name: getattr(field, name) for name in ("description", "title", "examples")}
    facts = {name: value for each in field.metadata for name, value in _facts(each).items()}
    kept |= {name: getattr(field, name, None) for name in _UNTRANSLATED}
    given = {name: value for name, value in (kept | facts).items() if value is not None}
    return pydantic.Field(**given)


def _parts(hint: Any, seen: set[Any]) -> Iterator[tuple[Any, bool]]:
    """Yield every part of a hint, and whether it is within a class with fields of its own."""
    yield hint, False
    if get_origin(hint) is Literal:
        return
    for part in get_args(hint):
        yield from _parts(part, seen)
    if isinstance(hint, type) and hint not in seen and _has_fields(hint):
        seen.add(hint)
        for part in get_type_hints(hint, include_extras=True).values():
            yield from ((each, True) for each, _ in _parts(part, seen))


def _has_fields(hint: type) -> bool:
    is_known = dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct)
    return is_known or (issubclass(hint, dict | tuple) and hasattr(hint, "__annotations__"))


def _needs_pydantic(hint: Any) -> bool:
    return any(
        hasattr(part, "__get_pydantic_core_schema__")
        or (_is_field(part) and (is_inside or _as_meta(part) is None))
        for part, is_inside in _parts(hint, set())
    )


def _translate(hint: Any) -> Any:
    """Return a hint with the constraints of other libraries as msgspec's."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return Annotated[(_translate(args[0]), *map(_constraint, args[1:]))]
    if not args or origin is Literal or not all(map(_is_hint, args)):
        return hint
    translated = tuple(map(_translate, args))
    if translated == args:
        return hint
    if origin in (Union, types.UnionType):
        return reduce(or_, translated[1:], translated[0])
    return origin[translated]


def _is_hint(value: Any) -> bool:
    return not isinstance(value, list)  # as in Callable[[int], str]


def _constraint(metadata: Any) -> Any:
    if _is_field(metadata):
        return _as_meta(metadata)
    if type(metadata).__module__.split(".")[0] != "annotated_types":
        return metadata
    facts = _facts(metadata)
    if not facts:
        raise TypeError(f"the constraint {metadata!r} is not supported")
    return msgspec.Meta(**facts)


def _as_meta(field: Any) -> Any:
    """Return a pydantic field as msgspec's constraints, or None if it asks for more."""
    if any(getattr(field, name, None) is not None for name in _UNTRANSLATED):
        return None
    facts: dict[str, Any] = {}
    for metadata in field.metadata:
        found = _facts(metadata)
        if not found:
            return None
        facts |= found
    described = {name: getattr(field, name) for name in ("description", "title", "examples")}
    facts |= {name: value for name, value in described.items() if value is not None}
    return msgspec.Meta(**facts)


def _facts(metadata: Any) -> dict[str, Any]:
    values = {name: getattr(metadata, name, None) for name in _CONSTRAINTS}
    return {name: value for name, value in values.items() if value is not None}


# --- schemas --------------------------------------------------------------------------------------


def _schema(hint: Any) -> dict[str, Any]:
    """Return a schema whose root is not a reference, with all definitions at the root."""
    try:
        (root,), parts = msgspec.json.schema_components((hint,), ref_template=_REFERENCE)
    except TypeError as error:
        raise TypeError(str(error).rpartition("\n")[2]) from None
    name = root.get("$ref", "").removeprefix("#/$defs/")
    if name in parts:
        root = dict(parts[name])
        if msgspec.json.encode(parts).count(f'"#/$defs/{name}"'.encode()) == 0:
            del parts[name]
    root.pop("title", None)
    definitions: dict[str, Any] = {}
    _hoist({**root, "$defs": parts}, definitions)
    clean = _without_definitions(root)
    return {**clean, "$defs": definitions} if definitions else clean


def _hoist(part: Any, definitions: dict[str, Any]) -> None:
    """Collect the definitions of every level. Raises TypeError where two share a name."""
    if isinstance(part, dict):
        for name, definition in part.get("$defs", {}).items():
            clean = _without_definitions(definition)
            if definitions.setdefault(name, clean) != clean:
                raise TypeError(f"two different types are called {name}")
        for value in part.values():
            _hoist(value, definitions)
    elif isinstance(part, list):
        for value in part:
            _hoist(value, definitions)


def _without_definitions(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            name: _without_definitions(value) for name, value in part.items() if name != "$defs"
        }
    return [_without_definitions(value) for value in part] if isinstance(part, list) else part
