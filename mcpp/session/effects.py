"""What a session asks of whoever runs it: to tell those who wait."""

from dataclasses import dataclass
from typing import TypeAlias

from mcpp.errors import DecodeError, FilterError, TooLargeError
from mcpp.payloads import Error
from mcpp.protocol.envelope import Envelope


@dataclass(frozen=True, slots=True)
class Joined:
    """The line is up; sending may begin after `replayed` envelopes."""

    replayed: int


@dataclass(frozen=True, slots=True)
class Echoed:
    """An envelope of ours is in the log."""

    envelope: Envelope


@dataclass(frozen=True, slots=True)
class EnvelopeRefused:
    """The gateway refused an envelope; None where it could not say which."""

    envelope: Envelope | None
    details: Error


@dataclass(frozen=True, slots=True)
class Unsendable:
    """An envelope that was taken on under another limit is too long for the present one."""

    envelope: Envelope
    error: TooLargeError


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer to a request or to a proposal's fulfilment, or that fulfilment's cancellation."""

    request_id: str
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Noted:
    """News of a request or a proposal: progress, a fulfilment, an opinion against it."""

    request_id: str
    envelope: Envelope


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A text that is no envelope. Nothing else is lost by it."""

    error: DecodeError | FilterError


Effect: TypeAlias = Joined | Echoed | EnvelopeRefused | Unsendable | Answered | Noted | Unreadable
