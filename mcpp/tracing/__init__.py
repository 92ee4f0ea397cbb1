"""Traces of requests and of a model's work (OpenTelemetry). Off until `enable` is called.

`spans` is what the SDK calls: it records nothing and imports nothing by default. `otel` is loaded
by `enable` and needs the extra `otel`.
"""

from typing import TYPE_CHECKING

from mcpp.tracing import spans

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["disable", "enable"]


def enable(provider: "TracerProvider | None" = None) -> None:
    """Record requests, and what is done to serve them, as spans of OpenTelemetry.

    From then on, requests of this process carry its trace context (O-06). The spans go to
    `provider`, or to the global one: without one, trace contexts are only passed on.

    Raises ModuleNotFoundError if the extra `otel` is not installed.
    """
    from mcpp.tracing.otel import OtelTracer

    spans.use(OtelTracer(provider))


def disable() -> None:
    """Record no more spans."""
    spans.use(None)
