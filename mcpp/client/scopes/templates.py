"""Templates of contexts: a named type with expected steps and checked metadata.

A template is held by the programs that use it. On the wire it is an ordinary context: its name is
the context's type, and its steps are announced in the metadata (C-21).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpp.errors import EncodeError
from mcpp.protocol.value_types import InvalidValueError, ValueType, to_json


@dataclass(frozen=True)
class ContextTemplate:
    """A kind of work: `ContextTemplate("code-review", steps=["read", "tests"], metadata=Review)`.

    Args:
        name: the type of its contexts.
        steps: what such work consists of, in order; `await context.step("tests")` begins one.
        metadata: a type that the metadata must have: a dataclass, a TypedDict, a msgspec struct or
            a pydantic model.

    Raises TypeError for a type that JSON cannot carry, and ValueError for a step that is twice.
    """

    name: str
    steps: Sequence[str] = ()
    metadata: type[Any] | None = None
    _checked: ValueType | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.steps, str) or len(set(self.steps)) < len(self.steps):
            raise ValueError(f"template {self.name!r}: steps are several different names")
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "_checked", self.metadata and ValueType.of(self.metadata))

    def check(self, metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Return metadata as JSON, with the defaults of the template's type.

        Raises EncodeError with the path of a member that the type does not allow.
        """
        if self._checked is None:
            return dict(metadata)
        try:
            checked = to_json(self._checked.read(to_json(dict(metadata))))
        except InvalidValueError as error:
            raise EncodeError(f"$.context.metadata{error.path}", error.reason) from None
        for name in metadata.keys() - checked.keys():
            raise EncodeError(f"$.context.metadata.{name}", f"is not part of {self.name!r}")
        return {name: value for name, value in checked.items() if value is not None}
