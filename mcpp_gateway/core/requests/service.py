"""The service of requests to the gateway (`pod/*`): finds the handler of a kind."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from mcpp.errors import DecodeError
from mcpp.protocol.codec import decode_unambiguous
from mcpp.protocol.envelope import Envelope
from mcpp_gateway.core import refusals
from mcpp_gateway.core.effects import Effect
from mcpp_gateway.core.requests.answers import Answers
from mcpp_gateway.core.sessions import Session

_MAX_REQUEST_BYTES: Final = 16_384  # a filter has 4,096

Handler: TypeAlias = Callable[[Session, Envelope, float], Effect | None]


class RequestService:
    """Serves the requests of a pod's sessions. Owns the table of handlers."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._handlers: dict[str, Handler] = {}

    def add(self, kind: str, handler: Handler) -> None:
        """Let a handler serve a kind."""
        self._handlers[kind] = handler

    def serve(self, session: Session, envelope: Envelope, now: float) -> Effect | None:
        """Answer a request, or refuse a kind that is not served here."""
        handler = self._handlers.get(envelope.kind)
        if handler is None:
            refusal = refusals.reserved_kind(envelope.kind)
            return self._answers.refuse(session, refusal, envelope.id, now)
        return handler(session, envelope, now)


def read_request(envelope: Envelope, path: str) -> Any:
    """Return the payload of a request, none of which is long (G-47). Raises DecodeError."""
    if len(envelope.raw_payload) > _MAX_REQUEST_BYTES:
        raise DecodeError(path, f"is longer than {_MAX_REQUEST_BYTES} bytes")
    return decode_unambiguous(envelope.raw_payload, path)
