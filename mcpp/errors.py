"""The errors that MCPP raises. Their details are attributes.

McppError
├── DecodeError         bytes are not an envelope, or a payload is not of the requested type
├── EncodeError         what is to be sent breaks a rule of the protocol
├── FilterError         an invalid filter
├── CapabilityError     an invalid capability pattern
├── TimeError           a text is not a time
├── NotInHistoryError   the log has no such context or envelope that this participant may read
├── HistoryLostError    the gateway lost its log while it was read
├── PodNotFoundError    no address was given and no local pod was found
├── LocalPodError       the files of the local pod cannot be used as requested
├── ConnectionLostError there is no connection to the pod, and the SDK has stopped trying
│   ├── AddressError            URL, token or authority cannot be used; no connection was attempted
│   ├── UnreachableError        no gateway answers at the address
│   │   ├── BusyError           the gateway answers that it cannot accept the connection now
│   │   └── TokenUnavailableError   there is no token to connect with at present
│   ├── JoinError               the gateway refused the connection
│   ├── WrongParticipantError   the token belongs to another participant
│   └── ClosedError             the connection was closed for good, by the gateway or by us
├── AttachmentError     content cannot be uploaded or fetched
├── TooLargeError       an envelope exceeds the gateway's size limit and was not sent
├── Refused             the gateway refused an envelope; `code` says why
└── CallError           a request failed
    ├── AbsentError             the participant is not in the pod, or left before it answered
    ├── NoAnswerError           no answer within the timeout
    ├── RemoteError             the answer is a JSON-RPC error
    └── ToolError               the tool ran and failed (`isError`)

`mcpp.prompts.BudgetError`, `mcpp.testing.RecordingError`, `mcpp.testing.DivergedError` and
`mcpp.cli.extras.MissingExtraError` are in the modules that raise them.
"""

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mcpp.payloads import Error
    from mcpp.protocol.envelope import Envelope
    from mcpp.protocol.rpc import ToolResult

__all__ = [
    "AbsentError",
    "AddressError",
    "AttachmentError",
    "BusyError",
    "CallError",
    "CapabilityError",
    "ClaimHeldError",
    "ClaimLostError",
    "ClosedError",
    "ConnectionLostError",
    "DecodeError",
    "EncodeError",
    "FilterError",
    "HistoryLostError",
    "JoinError",
    "LocalPodError",
    "LostProposalError",
    "McppError",
    "NoAnswerError",
    "NotInHistoryError",
    "PodNotFoundError",
    "Refused",
    "RemoteError",
    "TimeError",
    "TokenRefusedError",
    "TokenUnavailableError",
    "TooLargeError",
    "ToolError",
    "UnreachableError",
    "WrongParticipantError",
]


class McppError(Exception):
    """The base class of all errors that MCPP raises deliberately."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by attributes: the constructors take other arguments than `args`."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(error: type[McppError], args: tuple[Any, ...], facts: dict[str, Any]) -> McppError:
    restored = error.__new__(error)
    restored.args = args
    restored.__dict__.update(facts)
    return restored


class _PathError(McppError, ValueError):
    """A value is invalid at `path`, for `reason`."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        """Where, as a JSON path: `$.context.id`."""
        self.reason = reason
        """Why, as a phrase that follows the path: "is missing"."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class DecodeError(_PathError):
    """A text or a payload breaks a rule of the protocol."""


class EncodeError(_PathError):
    """What is to be sent breaks a rule of the protocol, or JSON cannot represent it."""


class FilterError(_PathError):
    """A filter is invalid."""


class CapabilityError(_PathError):
    """A capability pattern is invalid, or could never match anything."""


class TimeError(McppError, ValueError):
    """A text is not a time that `mcpp.times.parse_time` reads."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text
        """The text."""

    def __str__(self) -> str:
        return f"{self.text!r} is not a time, such as 10:00, yesterday, 2h ago or 2026-11-17T10:00"


class NotInHistoryError(McppError, LookupError):
    """The log has no such context or envelope, or this participant may not read it."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.id = id
        """The id of the context or envelope."""

    def __str__(self) -> str:
        return f"the log has no {self.id!r} that this participant may read"


class HistoryLostError(McppError):
    """The gateway lost its log while it was read, so the rest cannot follow."""

    def __str__(self) -> str:
        return "the gateway lost its log while it was read"


class PodNotFoundError(McppError):
    """No address was given and no local pod was found."""

    def __init__(self, hint: str) -> None:
        super().__init__(f"no pod to connect to: {hint}")
        self.hint = hint
        """What to do about it."""


class LocalPodError(McppError):
    """The files of the local pod cannot be used as requested."""


class ConnectionLostError(McppError):
    """There is no connection to the pod, and the SDK has stopped trying."""


class AddressError(ConnectionLostError):
    """The URL, the token or the authority's file cannot be used. No connection was attempted."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        """The URL that was given; never the token."""
        self.reason = reason
        """What is wrong with them."""

    def __str__(self) -> str:
        return f"cannot connect to {self.url!r}: {self.reason}"


class UnreachableError(ConnectionLostError):
    """No gateway answers at the address."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        """The URL that was tried."""
        self.reason = reason
        """The operating system's or the transport's reason."""

    def __str__(self) -> str:
        return f"no gateway answers at {self.url}: {self.reason}"


class BusyError(UnreachableError):
    """The gateway answers that it cannot accept the connection now (429 or 5xx)."""

    def __init__(self, url: str, reason: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(url, reason)
        self.retry_after_seconds = retry_after_seconds
        """When to try again, if the gateway says so."""

    def __str__(self) -> str:
        return f"the gateway at {self.url} cannot accept the connection now: {self.reason}"


class JoinError(ConnectionLostError):
    """The gateway refused the connection."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        """The HTTP status: 400 for the query, 401 for the token, 403 for the pod or the origin."""
        self.reason = reason
        """The gateway's explanation."""

    def __str__(self) -> str:
        return f"the gateway refused the connection with {self.status}: {self.reason}"


class TokenUnavailableError(UnreachableError):
    """The function, file or command of a token has none at present, or none that may be right."""

    def __str__(self) -> str:
        where = f" for {self.url}" if self.url else ""
        return f"no token{where}: {self.reason}"


class TokenRefusedError(JoinError):
    """The gateway refused a token that may change: a file's, a command's or a function's.

    Once joined, a client tries again, since the next token may be right (S-12).
    """


class WrongParticipantError(ConnectionLostError):
    """The token does not belong to the participant that was named."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        """The participant that was named."""
        self.actual = actual
        """The participant that the token belongs to."""

    def __str__(self) -> str:
        return f"the token belongs to {self.actual!r}, not to {self.expected!r}"


class ClosedError(ConnectionLostError):
    """The connection was closed for good: by a final close code, or at the end of `async with`."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        """The WebSocket close code; 4500 to 4999 are final."""
        self.reason = reason
        """The close reason, possibly empty."""

    def __str__(self) -> str:
        return f"the connection is closed ({self.code}): {self.reason or 'no reason given'}"


class AttachmentError(McppError):
    """Content cannot be uploaded or fetched, or is not what its reference names."""

    def __init__(self, status: int | None, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        """The HTTP status: 404 unknown or not for you, 413 too large, 507 no room; or None."""
        self.reason = reason
        """The gateway's explanation, or what happened here."""

    def __str__(self) -> str:
        return self.reason if self.status is None else f"{self.status}: {self.reason}"


class TooLargeError(McppError):
    """An envelope exceeds the gateway's size limit and was not sent.

    The gateway would have closed the connection for it.
    """

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(size_bytes, limit_bytes)
        self.size_bytes = size_bytes
        """The size of the encoded envelope."""
        self.limit_bytes = limit_bytes
        """The gateway's `max_message_bytes`."""

    def __str__(self) -> str:
        return f"the envelope has {self.size_bytes} bytes, more than the limit {self.limit_bytes}"


class Refused(McppError):  # noqa: N818  (the protocol's word)
    """The gateway refused an envelope and sent it to no participant."""

    def __init__(self, envelope: "Envelope", details: "Error") -> None:
        super().__init__(envelope, details)
        self.envelope = envelope
        """The refused envelope."""
        self.details = details
        """The payload of the gateway's `system/error`."""

    @property
    def code(self) -> str:
        """The protocol's code for the reason: `capability_violation`, `rate_limited`, …"""
        return self.details.error

    def __str__(self) -> str:
        return f"{self.envelope.kind} was refused, {self.code}: {self.details.message}"


class ClaimHeldError(McppError):
    """Another participant, or another task of this one, holds the name that was claimed."""

    def __init__(self, name: str, holder: str) -> None:
        super().__init__(name, holder)
        self.name = name
        """The name."""
        self.holder = holder
        """The participant that holds it."""

    def __str__(self) -> str:
        return f"{self.name!r} is held by {self.holder!r}"


class ClaimLostError(McppError):
    """This participant left the pod while it held a name, so another may hold it now."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        """The name."""

    def __str__(self) -> str:
        return f"the claim of {self.name!r} was lost with the connection"


class CallError(McppError):
    """A request failed: it has no result."""

    def __init__(self, participant: str, method: str, problem: str) -> None:
        super().__init__(participant, method, problem)
        self.participant = participant
        """The participant that was asked."""
        self.method = method
        """The MCP method or the tool's name."""
        self.problem = problem
        """What went wrong, in a phrase."""

    def __str__(self) -> str:
        return f"{self.method} of {self.participant!r}: {self.problem}"


class AbsentError(CallError):
    """The participant is not in the pod, or left before it answered."""

    def __init__(
        self, participant: str, method: str, problem: str, present: "Sequence[str]" = ()
    ) -> None:
        super().__init__(participant, method, problem)
        self.present = tuple(present)
        """The participants that are in the pod."""
        self.offering: tuple[str, ...] = ()
        """Those of them whose cards list the tool that was called."""

    @property
    def nearest(self) -> str | None:
        """The name of a present participant that resembles the one that was asked, if any."""
        return next(iter(get_close_matches(self.participant, self.present, 1)), None)

    def __str__(self) -> str:
        text = super().__str__()
        if self.nearest is not None:
            text += f"; did you mean {self.nearest!r}?"
        elif self.offering:
            text += f"; {self.method!r} is a tool of {', '.join(self.offering)}"
        if not self.present:
            return text
        names = ", ".join(self.present[:_SHOWN_NAMES])
        more = ", …" if len(self.present) > _SHOWN_NAMES else ""
        return f"{text}{' Present' if self.nearest is not None else '; present'}: {names}{more}"


_SHOWN_NAMES = 8


class LostProposalError(CallError):
    """The gateway has lost its log, and the proposal with it."""

    def __init__(self, participant: str = "", method: str = "") -> None:
        super().__init__(participant, method, "the gateway has lost its log, and this proposal")
        self.args = (participant, method)


class NoAnswerError(CallError, TimeoutError):
    """The participant did not answer within the timeout."""

    def __init__(self, participant: str, method: str, timeout_seconds: float) -> None:
        super().__init__(participant, method, f"no answer within {timeout_seconds:g} s")
        self.timeout_seconds = timeout_seconds
        """How long the call waited."""
        self.args = (participant, method, timeout_seconds)  # OSError would keep only two


class RemoteError(CallError):
    """The participant answered with a JSON-RPC error."""

    def __init__(
        self, participant: str, method: str, *, code: int, message: str, data: Any = None
    ) -> None:
        super().__init__(participant, method, f"{message} ({code})")
        self.code = code
        """JSON-RPC's error code."""
        self.message = message
        """The participant's explanation."""
        self.data = data
        """Details, if the participant gave any."""


class ToolError(CallError):
    """The tool ran and failed."""

    def __init__(self, participant: str, method: str, result: "ToolResult") -> None:
        super().__init__(participant, method, result.text or "the tool failed")
        self.result = result
        """The tool's result, with `is_error` set."""
