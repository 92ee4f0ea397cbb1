"""A collector of traces on loopback: OTLP over HTTP, with protobuf, as OpenTelemetry defines it."""

import gzip
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.agents.http_server import QuietHandler, serve_http


@dataclass(frozen=True)
class CollectedSpan:
    """A span as it arrived, with its ids in hexadecimal."""

    name: str
    service: str
    trace: str
    id: str
    parent: str
    kind: int  # 1 internal, 2 server, 3 client
    status: int  # 0 unset, 1 ok, 2 error
    message: str
    seconds: float
    attributes: dict[str, Any]
    links: list[tuple[str, str]]
    events: list[str]


@dataclass
class Collector:
    """The spans received so far. With a status other than 200, it refuses them."""

    url: str = ""
    status: int = 200
    spans: list[CollectedSpan] = field(default_factory=list)
    requests: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def receive(self, body: bytes) -> bytes:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            self.requests += 1
            if self.status == 200:
                self.spans += _read(request)
            self._changed.notify_all()
        return bytes(ExportTraceServiceResponse().SerializeToString())

    def wait_for(self, *names: str, seconds: float = 30.0) -> list[CollectedSpan]:
        """Wait until spans of these names have arrived, each as often as named; return them."""
        with self._changed:
            arrived = self._changed.wait_for(lambda: not self._missing(names), seconds)
            assert arrived, (self._missing(names), [span.name for span in self.spans])
            return [span for span in self.spans if span.name in names]

    def wait_for_requests(self, count: int, seconds: float = 30.0) -> None:
        """Wait until so many requests were made, refused ones included."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.requests >= count, seconds)

    def _missing(self, names: tuple[str, ...]) -> Counter[str]:
        return Counter(names) - Counter(span.name for span in self.spans)


@contextmanager
def collecting() -> Iterator[Collector]:
    """Run a collector for the duration of the block."""
    collector = Collector()

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802
            body = self.read_body()
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            assert self.headers["Content-Type"] == "application/x-protobuf"
            answer = collector.receive(body)
            self.send_response(collector.status)
            self.finish_with(answer)

    with serve_http(Handler) as url:
        collector.url = url
        yield collector


def _read(request: ExportTraceServiceRequest) -> Iterator[CollectedSpan]:
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield CollectedSpan(
                    span.name,
                    str(resource.get("service.name", "")),
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    span.status.code,
                    span.status.message,
                    (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                    _attributes(span.attributes),
                    [(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
                    [event.name for event in span.events],
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(part) for part in value.array_value.values]
    return getattr(value, kind)
