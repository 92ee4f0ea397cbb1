"""Kinds: the constants of the protocol, and parsing `mcp/request:tools/call:read_file`.

A kind is printable ASCII. In a name, every other character is percent-encoded (E-15):
`mcp/request:tools/call:read%20file`.
"""

from typing import Final, NamedTuple
from urllib.parse import quote, unquote

__all__ = [
    "CARD",
    "CARD_REQUEST",
    "CHAT",
    "CLAIM",
    "CONCLUSION",
    "CONTEXT",
    "ERASED",
    "ERROR",
    "FILTER_SET",
    "GET_HISTORY",
    "HISTORY",
    "LIVE_TEXT",
    "LOOP",
    "NOTIFICATION",
    "PRESENCE",
    "PROPOSAL",
    "REFLECTION",
    "REJECT",
    "RELEASE",
    "REPLAY",
    "REQUEST",
    "RESPONSE",
    "SET_FILTER",
    "SET_REPLAY",
    "TOMBSTONE",
    "UPDATE",
    "WELCOME",
    "WITHDRAW",
    "Kind",
    "decoded",
    "is_live",
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
TOMBSTONE: Final = "tombstone"  # stands in the place of an erased envelope (H-10)
CLAIM: Final = "claim"
RELEASE: Final = "release"
WELCOME: Final = "system/welcome"
PRESENCE: Final = "system/presence"
ERROR: Final = "system/error"
CONTEXT: Final = "system/context"
FILTER_SET: Final = "system/filter"
HISTORY: Final = "system/history"
ERASED: Final = "system/erased"
REPLAY: Final = "system/replay"
CARD: Final = "system/card"
UPDATE: Final = "system/update"
CARD_REQUEST: Final = "pod/card"
SET_FILTER: Final = "pod/filter"
GET_HISTORY: Final = "pod/history"
SET_REPLAY: Final = "pod/replay"
LIVE_TEXT: Final = "live/text"
LOOP: Final = "system/loop"


# What `quote` leaves as it is: printable ASCII but for `%`.
_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


def decoded(kind: str) -> str:
    """Return a kind as people write it, which is what patterns and filters match (K-03, F-07)."""
    return unquote(kind) if "%" in kind else kind


def is_live(kind: str) -> bool:
    """Return whether envelopes of a kind are relayed and never logged (G-80)."""
    return kind.startswith("live/")


class Kind(NamedTuple):
    """The parts of a kind: its family, the MCP method, and the name that the method takes.

    The name is as its owner spells it, not percent-encoded.
    """

    family: str
    method: str | None = None
    name: str | None = None

    @classmethod
    def parse(cls, kind: str) -> "Kind":
        """Parse a kind. A name may contain colons, a method may not."""
        family, *rest = kind.split(":", 2)
        if "%" in kind and len(rest) == 2:
            rest[1] = unquote(rest[1])
        return cls(family, *rest)

    def __str__(self) -> str:
        if self.method is None and self.name is not None:
            raise ValueError(f"a kind with a name needs a method: {self.name!r}")
        if ":" in self.family or ":" in (self.method or ""):
            raise ValueError(f"only the name of a kind may contain a colon: {tuple(self)}")
        name = None if self.name is None else quote(self.name, safe=_PLAIN)
        return ":".join(part for part in (self.family, self.method, name) if part is not None)
