"""MCPP: the message bus on which AI agents, tools and people work together."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
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

# Where each public name lives. A name is imported when it is first used, so that the command line
# answers at once; a test holds this table, the imports above and `__all__` together.
_HOMES: Final = {
    "mcpp.codec": ("decode", "encode"),
    "mcpp.envelope": ("PROTOCOL", "Context", "Envelope"),
    "mcpp.errors": ("DecodeError", "FilterError", "McppError"),
    "mcpp.filters": ("filters",),
    "mcpp.kinds": ("Kind",),
    "mcpp.mint": ("new_context", "new_envelope"),
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
