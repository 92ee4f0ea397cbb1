"""Effects: what a session reports to the connection that runs it."""

from dataclasses import dataclass
from typing import TypeAlias

from mcpp.errors import DecodeError, FilterError, TooLargeError
from mcpp.payloads import Error
from mcpp.protocol.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Joined:
    """The gateway has accepted the connection; sending may begin after `replayed` envelopes."""

    replayed: int
    lost_log: bool = False  # the gateway has lost what it had logged before


@dataclass(frozen=True, slots=True)
class Echoed:
    """This participant's envelope is in the log."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Served:
    """The gateway's answer to one of this participant's queries (`pod/history`)."""

    query: Envelope
    answer: Envelope


@dataclass(frozen=True, slots=True)
class EnvelopeRefused:
    """The gateway refused an envelope; None where the gateway could not tell which."""

    envelope: Envelope | None
    details: Error


@dataclass(frozen=True, slots=True)
class Unsendable:
    """An envelope accepted under a higher size limit is too large for the current one."""

    envelope: Envelope
    error: TooLargeError


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a request or a proposal, or the cancellation of a proposal's fulfilment."""

    request_id: str
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Noted:
    """An event about a pending request or proposal: progress, a fulfilment, a rejection."""

    request_id: str
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A text that is not a valid envelope; it is skipped."""

    error: DecodeError | FilterError


Effect: TypeAlias = (
    Joined | Echoed | Served | EnvelopeRefused | Unsendable | Answered | Noted | Unreadable
)
