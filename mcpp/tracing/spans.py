"""The seam between the SDK and a tracer: which operations have a span, and what it learns of them.

Without a tracer, every operation gets the same span, which records nothing: about a microsecond for
a request that takes hundreds.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Literal, Protocol

from mcpp.protocol.envelope import Envelope

__all__ = [
    "OpenSpan",
    "SpanTracer",
    "current",
    "operation",
    "requesting",
    "serving",
    "use",
]


class OpenSpan:
    """An operation that is under way. This one records nothing."""

    def inject(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a request's params with the trace context in `_meta` (O-06)."""
        return params

    def record(self, outcome: Any) -> None:
        """Record what a request was answered with: a result or a `Failure`."""

    def set(self, attributes: Mapping[str, Any]) -> None:
        """Add attributes."""

    def describe(self, method: str, params: Mapping[str, Any]) -> None:
        """Give a span that another library has opened for a request our name and attributes."""

    def refuse(self, code: int) -> None:
        """Record an error with which such a request is answered, before that library does."""


class SpanTracer(Protocol):
    """Makes spans. An exception that leaves a span's block becomes the span's error."""

    def requesting(
        self, method: str, params: Mapping[str, Any], id: str, to: str, pod: str
    ) -> AbstractContextManager[OpenSpan]:
        """Return the span of a request to another participant."""
        ...

    def serving(self, envelope: Envelope, pod: str) -> AbstractContextManager[OpenSpan]:
        """Return the span of a request that this participant serves."""
        ...

    def operation(
        self, name: str, kind: Literal["client", "internal"], attributes: Mapping[str, Any]
    ) -> AbstractContextManager[OpenSpan]:
        """Return the span of any other work."""
        ...

    def current(self) -> OpenSpan:
        """Return the span in which the caller runs."""
        ...


_NOTHING: Final = OpenSpan()
_NO_BLOCK: Final = nullcontext(_NOTHING)

_tracer: SpanTracer | None = None


def use(tracer: SpanTracer | None) -> None:
    """Make spans with this tracer from now on, or none."""
    global _tracer
    _tracer = tracer


def requesting(
    method: str, params: Mapping[str, Any], id: str, to: str, pod: str
) -> AbstractContextManager[OpenSpan]:
    """Return the span of a request to another participant."""
    return _NO_BLOCK if _tracer is None else _tracer.requesting(method, params, id, to, pod)


def serving(envelope: Envelope, pod: str) -> AbstractContextManager[OpenSpan]:
    """Return the span of a request that this participant serves."""
    return _NO_BLOCK if _tracer is None else _tracer.serving(envelope, pod)


def operation(
    name: str, attributes: Mapping[str, Any], *, kind: Literal["client", "internal"] = "internal"
) -> AbstractContextManager[OpenSpan]:
    """Return the span of any other work, such as a model's reply."""
    return _NO_BLOCK if _tracer is None else _tracer.operation(name, kind, attributes)


def current() -> OpenSpan:
    """Return the span in which the caller runs."""
    return _NOTHING if _tracer is None else _tracer.current()
