"""Memory: what agents should not have to relearn, given back as context packs for a goal."""

from mcpp_agents.memory.access import OWNER, Principal
from mcpp_agents.memory.errors import (
    AccessDenied,
    CapReached,
    InvalidMemory,
    MemoryFault,
    OrganizationRequired,
    ProjectDenied,
    UnknownMemory,
)
from mcpp_agents.memory.pack import ContextPack, Forgotten, PackItem, PackSection, Remembered
from mcpp_agents.memory.requests import MemoryDraft
from mcpp_agents.memory.search.embedding import Embedder
from mcpp_agents.memory.store import MemoryStore

__all__ = [
    "OWNER",
    "AccessDenied",
    "CapReached",
    "ContextPack",
    "Embedder",
    "Forgotten",
    "InvalidMemory",
    "MemoryDraft",
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
