"""The spans of requests to a server, which the MCP SDK makes: their names, and expected refusals.

The bridge asks each server what it offers, and whether it speaks the newest revision of MCP. The
SDK marks the span as failed where a server refuses that, which most do.
"""

from typing import Final

from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse

from mcpp.tracing import spans

_MAX_OPEN: Final = 64  # those of requests that are never answered must not pile up


class RequestSpans:
    """The spans of one connection to a server. Owns those that wait for an answer, the latest."""

    def __init__(self) -> None:
        self._open: dict[int | str, spans.OpenSpan] = {}

    def ask(self, request: JSONRPCRequest) -> None:
        """Describe a request that is sent; the SDK calls this in the span that it has opened."""
        span = spans.current()
        span.describe(request.method, request.params or {})
        self._open[request.id] = span
        if len(self._open) > _MAX_OPEN:
            del self._open[next(iter(self._open))]

    def answer(self, item: SessionMessage | Exception) -> None:
        """Record what has arrived, before the SDK sees it."""
        answer = item.message if isinstance(item, SessionMessage) else None
        if not isinstance(answer, (JSONRPCError, JSONRPCResponse)) or answer.id is None:
            return
        span = self._open.pop(answer.id, None)
        if span is not None and isinstance(answer, JSONRPCError):
            span.refuse(answer.error.code)
