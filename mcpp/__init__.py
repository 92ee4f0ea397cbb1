"""MCPP: the message bus on which AI agents, tools and people work together."""

from mcpp.codec import decode, encode
from mcpp.envelope import PROTOCOL, Context, Envelope
from mcpp.errors import DecodeError, McppError
from mcpp.kinds import Kind
from mcpp.mint import new_context, new_envelope

__all__ = [
    "PROTOCOL",
    "Context",
    "DecodeError",
    "Envelope",
    "Kind",
    "McppError",
    "decode",
    "encode",
    "new_context",
    "new_envelope",
]

__version__ = "0.1.0"
