"""MCPP: the message bus on which AI agents, tools and people work together."""

from mcpp import filters
from mcpp.codec import decode, encode
from mcpp.envelope import PROTOCOL, Context, Envelope
from mcpp.errors import DecodeError, FilterError, McppError
from mcpp.kinds import Kind
from mcpp.mint import new_context, new_envelope

__all__ = [
    "PROTOCOL",
    "Context",
    "DecodeError",
    "Envelope",
    "FilterError",
    "Kind",
    "McppError",
    "decode",
    "encode",
    "filters",
    "new_context",
    "new_envelope",
]

__version__ = "0.1.0"
