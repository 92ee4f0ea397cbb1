"""Kinds: the constants of the protocol, and parsing `mcp/request:tools/call:read_file`."""

from typing import Final, NamedTuple

__all__ = [
    "CHAT",
    "CONCLUSION",
    "CONTEXT",
    "ERASED",
    "ERROR",
    "FILTER_SET",
    "GET_HISTORY",
    "HISTORY",
    "NOTIFICATION",
    "PRESENCE",
    "PROPOSAL",
    "REFLECTION",
    "REJECT",
    "REPLAY",
    "REQUEST",
    "RESPONSE",
    "SET_FILTER",
    "SET_REPLAY",
    "WELCOME",
    "WITHDRAW",
    "Kind",
]

CHAT: Final = "chat"
REFLECTION: Final = "reflection"
CONCLUSION: Final = "conclusion"
REQUEST: Final = "mcp/request"
RESPONSE: Final = "mcp/response"
NOTIFICATION: Final = "mcp/notification"
PROPOSAL: Final = "mcp/proposal"
REJECT: Final = "mcp/reject"
WITHDRAW: Final = "mcp/withdraw"
WELCOME: Final = "system/welcome"
PRESENCE: Final = "system/presence"
ERROR: Final = "system/error"
CONTEXT: Final = "system/context"
FILTER_SET: Final = "system/filter"
HISTORY: Final = "system/history"
ERASED: Final = "system/erased"
REPLAY: Final = "system/replay"
SET_FILTER: Final = "pod/filter"
GET_HISTORY: Final = "pod/history"
SET_REPLAY: Final = "pod/replay"


class Kind(NamedTuple):
    """The parts of a kind: its family, the MCP method, and the name that the method takes."""

    family: str
    method: str | None = None
    name: str | None = None

    @classmethod
    def parse(cls, kind: str) -> "Kind":
        """Parse a kind. A name may contain colons, a method may not."""
        family, *rest = kind.split(":", 2)
        return cls(family, *rest)

    def __str__(self) -> str:
        if self.method is None and self.name is not None:
            raise ValueError(f"a kind with a name needs a method: {self.name!r}")
        if ":" in self.family or ":" in (self.method or ""):
            raise ValueError(f"only the name of a kind may contain a colon: {tuple(self)}")
        return ":".join(part for part in self if part is not None)
