"""Traces of a command's own process, as the environment asks for them (extra `otel`).

The variables are OpenTelemetry's own: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_TRACES_EXPORTER (`otlp`,
`console` or `none`), OTEL_SERVICE_NAME and the others that its packages read.
"""

import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from mcpp import McppError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

logger = logging.getLogger("mcpp.tracing")


def trace_by_environment(name: str, environ: Mapping[str, str] = os.environ) -> None:
    """Trace this process if the environment says where to; `name` is its service's name."""
    wanted = _wanted(environ)
    if wanted is None:
        return
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        exporter = make_exporter(wanted)
    except ModuleNotFoundError as error:
        # Such variables are often set for every program of a machine.
        logger.warning("no traces: needs %s: pip install 'mcpp-pods[otel]'", error.name)
        return
    attributes = "service.name=" in environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    is_named = "OTEL_SERVICE_NAME" in environ or attributes
    resource = Resource.create({} if is_named else {"service.name": name})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)  # for libraries, too, such as MCP's SDK

    from mcpp import tracing

    tracing.enable(provider)


def make_exporter(kind: str, endpoint: str | None = None) -> "SpanExporter":
    """Return an exporter: `otlp` over HTTP, or `console`, which writes JSON to standard output.

    Raises ModuleNotFoundError without the extra `otel`, and McppError for another kind.
    """
    if kind == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stdout)
    if kind == "otlp":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

        return OTLPSpanExporter(endpoint=endpoint)
    raise McppError(f"OTEL_TRACES_EXPORTER must be otlp, console or none, not {kind!r}")


def _wanted(environ: Mapping[str, str]) -> str | None:
    """Return which exporter the environment asks for, None if for no traces at all."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    kind = environ.get("OTEL_TRACES_EXPORTER", "")
    if kind == "none":
        return None
    return kind or ("otlp" if any(environ.get(name) for name in _ENDPOINTS) else None)
