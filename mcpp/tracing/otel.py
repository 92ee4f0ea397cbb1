"""Spans of OpenTelemetry, with the attributes of its conventions for MCP and generative AI.

These conventions are still in development; all names that they define are in this module and in
`mcpp_agents/model/tracing.py`.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, Literal

from opentelemetry import propagate, trace
from opentelemetry.context import Context, attach, detach
from opentelemetry.trace import Link, SpanKind, StatusCode, TracerProvider

import mcpp
from mcpp.errors import AbsentError, NoAnswerError, Refused, RemoteError
from mcpp.kinds import Kind
from mcpp.protocol import rpc
from mcpp.protocol.envelope import Envelope
from mcpp.protocol.rpc import METHOD_NOT_FOUND, TOOLS_CALL, TOOLS_LIST, Failure
from mcpp.tracing.spans import OpenSpan

# The longest values of the reserved members of `_meta` that are read: W3C's own limits.
_CARRIER: Final = {"traceparent": 128, "tracestate": 512, "baggage": 8192}
_METHOD: Final = "mcp.method.name"
_KINDS: Final = {"client": SpanKind.CLIENT, "internal": SpanKind.INTERNAL}
# Peers choose the names of what they ask for.
_MAX_NAME: Final = 128


class OtelTracer:
    """Makes spans with OpenTelemetry."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("mcpp", mcpp.__version__, provider)

    @contextmanager
    def requesting(
        self, method: str, params: Mapping[str, Any], id: str, to: str, pod: str
    ) -> Iterator[OpenSpan]:
        """Return the span of a request: below the current one, or the one in its params (O-06)."""
        name = params.get("name")
        attributes = _attributes(method, name if isinstance(name, str) else None)
        attributes |= {
            "jsonrpc.request.id": id,
            "mcpp.peer": to,
            "mcpp.pod": pod,
        }
        ambient = trace.get_current_span().get_span_context()
        context = None if ambient.is_valid else _context_in(params)
        with self._open(_name(method, name), SpanKind.CLIENT, attributes, context) as span:
            yield span

    @contextmanager
    def serving(self, envelope: Envelope, pod: str) -> Iterator[OpenSpan]:
        """Return the span of a request that is served: below the requester's, or a root (O-06)."""
        kind = Kind.parse(envelope.kind)
        method = kind.method or ""
        attributes = _attributes(method, kind.name)
        attributes |= {
            "jsonrpc.request.id": str(rpc.request_id(envelope)),
            "mcpp.peer": envelope.sender,
            "mcpp.pod": pod,
        }
        if envelope.context is not None:
            attributes["mcpp.context.id"] = envelope.context.id
        payload = envelope.payload
        params = payload.get("params") if isinstance(payload, dict) else None
        # What the agent itself runs in, such as its start, did not cause this.
        ambient = trace.get_current_span().get_span_context()
        links = [Link(ambient)] if ambient.is_valid else []
        context = _context_in(params) or Context()
        name = _name(method, kind.name)
        with self._open(name, SpanKind.SERVER, attributes, context, links) as span:
            yield span

    @contextmanager
    def operation(
        self, name: str, kind: Literal["client", "internal"], attributes: Mapping[str, Any]
    ) -> Iterator[OpenSpan]:
        """Return the span of any other work, below the current one."""
        with self._open(name, _KINDS[kind], attributes) as span:
            yield span

    def current(self) -> OpenSpan:
        """Return the span in which the caller runs."""
        return _OtelSpan(trace.get_current_span())

    @contextmanager
    def _open(
        self,
        name: str,
        kind: SpanKind,
        attributes: Mapping[str, Any],
        context: Context | None = None,
        links: list[Link] | None = None,
    ) -> Iterator["_OtelSpan"]:
        # Attached, so that its baggage goes on, too: a span's parent alone would not do that.
        token = None if context is None else attach(context)
        recorded = self._tracer.start_span(name, None, kind, attributes, links)
        span = _OtelSpan(recorded, str(attributes.get(_METHOD, "")))
        try:
            with trace.use_span(
                recorded, end_on_exit=True, record_exception=False, set_status_on_exception=False
            ):
                try:
                    yield span
                except BaseException as error:
                    span.fail(error)
                    raise
        finally:
            if token is not None:
                detach(token)


class _OtelSpan(OpenSpan):
    """A span of OpenTelemetry."""

    def __init__(self, span: trace.Span, method: str = "") -> None:
        self._span = span
        self._method = method  # of the request, if it is the span of one

    def inject(self, params: dict[str, Any]) -> dict[str, Any]:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return rpc.with_meta(params, carrier) if carrier else params

    def record(self, outcome: Any) -> None:
        if isinstance(outcome, Failure):
            self._fail_with_code(outcome.code, outcome.message)
        elif isinstance(outcome, dict) and outcome.get("isError") is True:
            self._span.set_attribute("error.type", "tool_error")
            self._span.set_status(StatusCode.ERROR)

    def set(self, attributes: Mapping[str, Any]) -> None:
        self._span.set_attributes(dict(attributes))

    def describe(self, method: str, params: Mapping[str, Any]) -> None:
        self._method, name = method, params.get("name")
        self._span.update_name(_name(method, name))
        self.set(_attributes(method, name if isinstance(name, str) else None))

    def refuse(self, code: int) -> None:
        if _is_expected(self._method, code):
            self._span.set_status(StatusCode.OK)  # final: an error is ignored after it

    def fail(self, error: BaseException) -> None:
        """Record the exception by which the work ended."""
        is_cancelled = not isinstance(error, Exception)
        if self._method == TOOLS_LIST and (is_cancelled or isinstance(error, AbsentError)):
            return  # nobody needs the list any more, or there is none: that is no error
        if isinstance(error, RemoteError):
            self._fail_with_code(error.code, error.message)
            return
        self._span.set_status(StatusCode.ERROR, "cancelled" if is_cancelled else str(error))
        self._span.set_attribute("error.type", _error_type(error))

    def _fail_with_code(self, code: int, message: str) -> None:
        self._span.set_attribute("rpc.response.status_code", str(code))
        if not _is_expected(self._method, code):
            self._span.set_attribute("error.type", str(code))
            self._span.set_status(StatusCode.ERROR, message)


def _is_expected(method: str, code: int) -> bool:
    """Return whether an error only says that a peer does not offer what it was asked for.

    Those who ask for a list or for changes, or whether an MCP server knows the newest revision,
    must expect it.
    """
    is_optional = method in ("ping", "subscriptions/listen") or method.endswith("/list")
    return method == "server/discover" or (is_optional and code == METHOD_NOT_FOUND)


def _error_type(error: BaseException) -> str:
    if isinstance(error, NoAnswerError):
        return "timeout"
    if isinstance(error, Refused):
        return error.code
    return type(error).__qualname__ if isinstance(error, Exception) else "cancelled"


def _name(method: str, name: object) -> str:
    is_target = method in (TOOLS_CALL, "prompts/get") and isinstance(name, str)
    return f"{method} {name}"[:_MAX_NAME] if is_target else method[:_MAX_NAME]


def _attributes(method: str, name: str | None) -> dict[str, Any]:
    attributes = {_METHOD: method}
    if method == TOOLS_CALL:
        attributes["gen_ai.operation.name"] = "execute_tool"
    if name is not None and method == TOOLS_CALL:
        attributes["gen_ai.tool.name"] = name
    elif name is not None and method == "prompts/get":
        attributes["gen_ai.prompt.name"] = name
    return attributes


def _context_in(params: object) -> Context | None:
    """Return the trace context in a request's params; None if there is no valid one."""
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    if not isinstance(meta, Mapping):
        return None
    carrier = {
        name: value
        for name, limit in _CARRIER.items()
        if isinstance(value := meta.get(name), str) and len(value) <= limit
    }
    context = propagate.extract(carrier, Context())
    is_valid = trace.get_current_span(context).get_span_context().is_valid
    return context if is_valid else None
