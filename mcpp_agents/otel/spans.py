"""Contexts as spans. Their ids are derived from the contexts': a second export changes nothing.

A parent's span is exported after those of its children, perhaps by a later run: its id has to be
known before.
"""

import re
from hashlib import sha256
from typing import Any, Final

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

import mcpp
from mcpp_agents.otel.contexts import TracedContext

_SCOPE: Final = InstrumentationScope("mcpp.otel", mcpp.__version__)
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")


def span_of(context: TracedContext, pod: str) -> ReadableSpan:
    """Return the span of a context that has ended. Its service is the context's creator."""
    info = context.info
    parent = None if info.parent is None else _span_context(pod, context.root, info.parent)
    names = {"service.name": info.creator or "unknown", "service.namespace": pod}
    return ReadableSpan(
        name=info.title or info.type or "context",
        context=_span_context(pod, context.root, info.id, context.period),
        parent=parent,
        resource=Resource.create(names),
        attributes=_attributes(context, pod),
        events=[Event(f"step {step}", timestamp=time) for time, step in context.steps],
        links=_links(context, pod),
        kind=SpanKind.INTERNAL,
        status=_status(context),
        start_time=context.start,
        end_time=max(context.start, context.end),
        instrumentation_scope=_SCOPE,
    )


def _span_context(pod: str, root: str, id: str, period: str = "") -> SpanContext:
    trace_id = int.from_bytes(_digest("trace", pod, root)[:16]) or 1
    span_id = int.from_bytes(_digest("span", pod, id, period)[:8]) or 1
    return SpanContext(trace_id, span_id, is_remote=False, trace_flags=_SAMPLED)


def _digest(*parts: str) -> bytes:
    return sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).digest()


def _attributes(context: TracedContext, pod: str) -> dict[str, Any]:
    info = context.info
    attributes: dict[str, Any] = {
        "mcpp.pod": pod,
        "mcpp.context.id": info.id,
        "mcpp.context.state": context.state,
        "mcpp.messages": context.messages,
        "mcpp.participants": context.participants,
    }
    if info.type is not None:
        attributes["mcpp.context.type"] = info.type
    if context.state == "failed":
        attributes["error.type"] = "failed"
    if context.usage is not None:
        attributes["gen_ai.usage.input_tokens"] = context.usage.input_tokens
        attributes["gen_ai.usage.output_tokens"] = context.usage.output_tokens
        attributes["gen_ai.usage.cache_read.input_tokens"] = context.usage.cached_tokens
        attributes["gen_ai.response.model"] = context.usage.model
    return attributes


def _links(context: TracedContext, pod: str) -> list[Link]:
    """Return links to the contexts that it answers, to its past, and to its requests' traces."""
    answered = [_span_context(pod, root, id) for id, root in context.answers]
    if context.period:
        answered.append(_span_context(pod, context.root, context.info.id))
    links = [Link(place, {"mcpp.link": "correlation"}) for place in answered]
    for trace in context.traces:
        found = _TRACEPARENT.fullmatch(trace)
        if found is not None:
            place = SpanContext(int(found[1], 16), int(found[2], 16), is_remote=True)
            if place.is_valid:
                links.append(Link(place, {"mcpp.link": "request"}))
    return links


def _status(context: TracedContext) -> Status:
    if context.state == "failed":
        return Status(StatusCode.ERROR, context.problem or None)
    return Status(StatusCode.OK if context.state == "concluded" else StatusCode.UNSET)
