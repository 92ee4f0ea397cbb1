"""Everything MCPP raises on purpose.

McppError
└── DecodeError     bytes that are not an envelope, or a payload that is not what was asked for
"""


class McppError(Exception):
    """The root of all errors that MCPP raises on purpose."""


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
