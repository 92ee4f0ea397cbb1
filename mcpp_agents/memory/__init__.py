"""Memory for agents: a store of decisions, facts and lessons, searched by goal.

`MemoryStore` is the library; `serving/` offers it as an MCP server, `bus/` as a pod participant.
"""

from mcpp_agents.memory.access import OWNER, Principal
from mcpp_agents.memory.errors import (
    AccessDenied,
    InvalidMemory,
    MemoryStoreError,
    OrganizationRequired,
    ProjectDenied,
    QuotaExceeded,
    StoreUnavailable,
    UnknownMemory,
)
from mcpp_agents.memory.pack import (
    ContextPack,
    Forgotten,
    PackItem,
    PackSection,
    Quality,
    RelatedItem,
    Remembered,
)
from mcpp_agents.memory.packing.plan import SynthesisPlan
from mcpp_agents.memory.requests import MemoryDraft, PackRequest, PlanRequest
from mcpp_agents.memory.search.embedding import Embedder
from mcpp_agents.memory.storage.engine import AuditEntry
from mcpp_agents.memory.store import MemoryStore

__all__ = [
    "OWNER",
    "AccessDenied",
    "AuditEntry",
    "ContextPack",
    "Embedder",
    "Forgotten",
    "InvalidMemory",
    "MemoryDraft",
    "MemoryStore",
    "MemoryStoreError",
    "OrganizationRequired",
    "PackItem",
    "PackRequest",
    "PackSection",
    "PlanRequest",
    "Principal",
    "ProjectDenied",
    "Quality",
    "QuotaExceeded",
    "RelatedItem",
    "Remembered",
    "StoreUnavailable",
    "SynthesisPlan",
    "UnknownMemory",
]
