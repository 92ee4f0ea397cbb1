"""Everything MCPP raises on purpose.

McppError
├── DecodeError         bytes that are not an envelope, or a payload that is not what was asked for
├── FilterError         a filter that breaks a rule of the algebra
├── CapabilityError     a capability pattern that could never be meant
├── PodNotFoundError    no address was given and there is no pod here
├── LocalPodError       the files of the local pod cannot be used as asked
├── ConnectionLostError the gateway cannot be reached, or the connection ended for good
│   ├── UnreachableError        nobody answers at the address
│   │   └── BusyError           a gateway answers that it cannot take us now
│   ├── JoinError               the gateway answered the upgrade with a refusal
│   │   └── AddressError        it would: the URL or the token cannot be meant, and was not used
│   ├── WrongParticipantError   the token is another participant's
│   └── ClosedError             closed with a final code, or by us
├── TooLargeError       an envelope over the gateway's limit, which was not sent
├── Refused             the gateway refused an envelope; `code` says why
└── CallError           a request that brought no result; `participant` says who was asked
    ├── NoAnswerError           no answer within the time
    ├── RemoteError             a JSON-RPC error
    └── ToolError               a tool's result with `isError`
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpp.payloads import Error
    from mcpp.protocol.envelope import Envelope
    from mcpp.protocol.rpc import ToolResult


class McppError(Exception):
    """The root of all errors that MCPP raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle by the attributes: constructors take other facts than `args` holds."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(error: type[McppError], args: tuple[Any, ...], facts: dict[str, Any]) -> McppError:
    restored = error.__new__(error)
    restored.args = args
    restored.__dict__.update(facts)
    return restored


class _PathError(McppError, ValueError):
    """Something wrong at a place: `path` says where, `reason` what to change."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class DecodeError(_PathError):
    """A text that breaks a rule of the protocol."""


class FilterError(_PathError):
    """A filter that breaks a rule of the algebra."""


class CapabilityError(_PathError):
    """A capability pattern that could never be meant."""


class PodNotFoundError(McppError):
    """No address was given, and there is no pod here."""

    def __init__(self, hint: str) -> None:
        super().__init__(f"no pod to connect to: {hint}")


class LocalPodError(McppError):
    """The files of the local pod cannot be used as asked."""


class ConnectionLostError(McppError):
    """There is no connection to the pod and there will be none."""


class UnreachableError(ConnectionLostError):
    """Nobody answers at the address."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(url, reason)
        self.url = url
        self.reason = reason

    def __str__(self) -> str:
        return f"no gateway answers at {self.url}: {self.reason}"


class BusyError(UnreachableError):
    """A gateway answers, but cannot take us now (429, 503): it is asked again, when it says so."""

    def __init__(self, url: str, reason: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(url, reason)
        self.retry_after_seconds = retry_after_seconds

    def __str__(self) -> str:
        return f"the gateway at {self.url} does not take us now: {self.reason}"


class JoinError(ConnectionLostError):
    """The gateway refused the connection: 401 a token, 403 a pod or an origin, 400 the query."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason

    def __str__(self) -> str:
        return f"the gateway refused the connection with {self.status}: {self.reason}"


class AddressError(JoinError):
    """A URL or a token that cannot be meant. No gateway was asked."""

    def __str__(self) -> str:
        return f"nothing to connect to: {self.reason}"


class WrongParticipantError(ConnectionLostError):
    """The token is another participant's: the gateway knows us under another name."""

    def __init__(self, expected: str, actual: str) -> None:
        super().__init__(expected, actual)
        self.expected = expected
        self.actual = actual

    def __str__(self) -> str:
        return f"this token is {self.actual!r}'s, not {self.expected!r}'s"


class ClosedError(ConnectionLostError):
    """The connection ended for good: a final close code, or the end of the `async with` block."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason

    def __str__(self) -> str:
        return f"the connection is closed ({self.code}): {self.reason or 'no reason given'}"


class TooLargeError(McppError):
    """An envelope over the gateway's limit. It was not sent: it would have ended the connection."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(size_bytes, limit_bytes)
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes

    def __str__(self) -> str:
        return f"an envelope of {self.size_bytes} bytes, where {self.limit_bytes} are allowed"


class Refused(McppError):  # noqa: N818  (the protocol's word)
    """The gateway refused an envelope, and nobody else has seen it."""

    def __init__(self, envelope: "Envelope", details: "Error") -> None:
        super().__init__(envelope, details)
        self.envelope = envelope
        self.details = details

    @property
    def code(self) -> str:
        """Why, as the protocol names it: `capability_violation`, `rate_limited`, …"""
        return self.details.error

    def __str__(self) -> str:
        return f"{self.envelope.kind} was refused, {self.code}: {self.details.message}"


class CallError(McppError):
    """A request that brought no result."""

    def __init__(self, participant: str, method: str, problem: str) -> None:
        super().__init__(participant, method, problem)
        self.participant = participant
        self.method = method
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.method} of {self.participant!r}: {self.problem}"


class NoAnswerError(CallError, TimeoutError):
    """Whoever was asked did not answer in time."""

    def __init__(self, participant: str, method: str, timeout_seconds: float) -> None:
        super().__init__(participant, method, f"no answer within {timeout_seconds:g} s")
        self.timeout_seconds = timeout_seconds
        self.args = (participant, method, timeout_seconds)  # OSError's own way would keep two


class RemoteError(CallError):
    """Whoever was asked answered with a JSON-RPC error."""

    def __init__(
        self, participant: str, method: str, *, code: int, message: str, data: Any = None
    ) -> None:
        super().__init__(participant, method, f"{message} ({code})")
        self.code = code
        self.message = message
        self.data = data


class ToolError(CallError):
    """The tool ran and failed; its result says how."""

    def __init__(self, participant: str, method: str, result: "ToolResult") -> None:
        super().__init__(participant, method, result.text or "the tool failed")
        self.result = result
