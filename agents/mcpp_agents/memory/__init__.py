"""Memory: what agents should not have to relearn, given back as context packs for a goal."""

from .access import OWNER, Principal
from .drafts import Draft
from .embedding import Embedder
from .errors import (
    AccessDenied,
    CapReached,
    InvalidMemory,
    MemoryFault,
    OrganizationRequired,
    ProjectDenied,
    UnknownMemory,
)
from .pack import ContextPack, Forgotten, PackItem, PackSection, Remembered
from .store import MemoryStore

__all__ = [
    "OWNER",
    "AccessDenied",
    "CapReached",
    "ContextPack",
    "Draft",
    "Embedder",
    "Forgotten",
    "InvalidMemory",
    "MemoryFault",
    "MemoryStore",
    "OrganizationRequired",
    "PackItem",
    "PackSection",
    "Principal",
    "ProjectDenied",
    "Remembered",
    "UnknownMemory",
]
