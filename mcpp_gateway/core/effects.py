"""Effects: what a pod asks the hub to do, and the close codes of the gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from mcpp_gateway.core.hearing.rights import Rights
    from mcpp_gateway.core.history.query import HistoryQuery
    from mcpp_gateway.core.sessions import Audience, Session

# G-31: a client may reconnect and resume after 4000-4499, and must not after 4500-4999.
DRAINING: Final = 4000  # the gateway is stopping
SLOW_READER: Final = 4001  # the outbox is full
POSITION_LOST: Final = 4002  # the log no longer holds what the client has not read
LOG_UNREACHABLE: Final = 4003  # the cluster's log cannot be reached from this gateway
TOKEN_EXPIRED: Final = 4004  # the signed token has expired; a newer one may be at hand
KICKED: Final = 4005  # closed by the operator
REPLACED: Final = 4500  # the participant has a newer connection
REVOKED: Final = 4501  # the token was removed or changed
SESSION_EXPIRED: Final = 4502  # the browser's session token expired


class Broadcast(msgspec.Struct, frozen=True, gc=False):
    """Send one text to all sessions of these audiences, and to these extra sessions."""

    text: bytes
    audiences: tuple[Audience, ...]
    extra: tuple[Session, ...] = ()


class Broadcasts(msgspec.Struct, frozen=True, gc=False):
    """Send several texts, in order, to all sessions of these audiences.

    One effect for all that a commit releases: 70 bytecodes less for each text.
    """

    texts: list[bytes]
    audiences: tuple[Audience, ...]


class RelayLive(msgspec.Struct, frozen=True, gc=False):
    """Send a live part to the sessions of these audiences, but for its sender (G-80).

    It may be left out: nothing that is sent later depends on it.
    """

    text: bytes
    audiences: tuple[Audience, ...]
    sender: Session | None  # None: at another gateway


class Direct(msgspec.Struct, frozen=True, gc=False):
    """Send a text to one session, at this place in its stream."""

    session: Session
    text: bytes


class Move(msgspec.Struct, frozen=True, gc=False):
    """Move a session into an audience, at this place in its stream and after this text."""

    session: Session
    audience: Audience
    text: bytes = b""


class Close(msgspec.Struct, frozen=True, gc=False):
    """Close a session and make it leave the pod, if it has not left already."""

    session: Session
    code: int
    reason: str


class CatchUp(msgspec.Struct, frozen=True, gc=False):
    """A session that is behind can go on: more is committed, or there is more to look through."""

    session: Session


class ReadHistory(msgspec.Struct, frozen=True, gc=False):
    """Read a page of the log for a session, and hand it to `HistoryRequests.answer`."""

    session: Session
    query: HistoryQuery
    listener: Rights
    id: str  # of the request


class Several(msgspec.Struct, frozen=True, gc=False):
    """Several effects, in order."""

    effects: tuple[Effect, ...]


Effect: TypeAlias = (
    Broadcast | Broadcasts | RelayLive | Direct | Move | Close | CatchUp | ReadHistory | Several
)
