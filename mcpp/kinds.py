"""Kinds read apart and put together: `mcp/request:tools/call:read_file`."""

from typing import Final, NamedTuple

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
SET_FILTER: Final = "pod/filter"


class Kind(NamedTuple):
    """A kind's parts: what it is, the MCP method it carries, and whose name that method takes."""

    family: str
    method: str | None = None
    name: str | None = None

    @classmethod
    def parse(cls, kind: str) -> "Kind":
        """Read a kind apart. A name may hold colons of its own; a method may not."""
        family, *rest = kind.split(":", 2)
        return cls(family, *rest)

    def __str__(self) -> str:
        if self.method is None and self.name is not None:
            raise ValueError(f"a kind with a name needs a method: {self.name!r}")
        if ":" in self.family or ":" in (self.method or ""):
            raise ValueError(f"only a kind's name may hold a colon: {tuple(self)}")
        return ":".join(part for part in self if part is not None)
