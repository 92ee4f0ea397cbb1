"""MCPP: the message bus on which AI agents, tools and people work together."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mcpp import filters
    from mcpp.agent.participant import Participant, run
    from mcpp.client.factory import new_context, new_envelope
    from mcpp.client.joining import connect
    from mcpp.client.message import Message
    from mcpp.client.pod import Pod
    from mcpp.errors import DecodeError, FilterError, McppError, Refused
    from mcpp.kinds import Kind
    from mcpp.protocol.codec import decode, encode
    from mcpp.protocol.envelope import PROTOCOL, Context, Envelope
    from mcpp.protocol.tree import ContextTree

__all__ = [
    "PROTOCOL",
    "Context",
    "ContextTree",
    "DecodeError",
    "Envelope",
    "FilterError",
    "Kind",
    "McppError",
    "Message",
    "Participant",
    "Pod",
    "Refused",
    "connect",
    "decode",
    "encode",
    "filters",
    "new_context",
    "new_envelope",
    "run",
]

__version__ = "0.1.0"

# Where each public name lives. A name is imported when it is first used, so that the command line
# answers at once; a test holds this table, the imports above and `__all__` together.
_HOMES: Final = {
    "mcpp.protocol.codec": ("decode", "encode"),
    "mcpp.protocol.envelope": ("PROTOCOL", "Context", "Envelope"),
    "mcpp.errors": ("DecodeError", "FilterError", "McppError", "Refused"),
    "mcpp.filters": ("filters",),
    "mcpp.client.joining": ("connect",),
    "mcpp.kinds": ("Kind",),
    "mcpp.client.message": ("Message",),
    "mcpp.client.factory": ("new_context", "new_envelope"),
    "mcpp.agent.participant": ("Participant", "run"),
    "mcpp.client.pod": ("Pod",),
    "mcpp.protocol.tree": ("ContextTree",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'mcpp' has no attribute {name!r}")
    module = import_module(home)
    value = module if home == f"mcpp.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
