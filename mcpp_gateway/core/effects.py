"""What the pod asks of the hub: the only way in which the core acts on the world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from mcpp_gateway.core.sessions import Audience, Session

# Close codes come in bands: 4000-4499 reconnect, 4500-4999 do not (G-31).
DRAINING: Final = 4000
SLOW_READER: Final = 4001
POSITION_LOST: Final = 4002
REPLACED: Final = 4500
REVOKED: Final = 4501
SESSION_EXPIRED: Final = 4502


class Broadcast(msgspec.Struct, frozen=True, gc=False):
    """One text for everyone in these audiences, and for these sessions extra."""

    text: bytes
    audiences: tuple[Audience, ...]
    extra: tuple[Session, ...] = ()


class Direct(msgspec.Struct, frozen=True, gc=False):
    """A text for one session, at this place in its stream."""

    session: Session
    text: bytes


class Move(msgspec.Struct, frozen=True, gc=False):
    """A session comes into an audience, at this place in its stream and after this text."""

    session: Session
    audience: Audience
    text: bytes = b""


class Close(msgspec.Struct, frozen=True, gc=False):
    """The end of a session. Whoever performs it makes it leave the pod, if it has not already."""

    session: Session
    code: int
    reason: str


class CatchUp(msgspec.Struct, frozen=True, gc=False):
    """More of the log is committed, for a session that is behind and waited for it."""

    session: Session


class Several(msgspec.Struct, frozen=True, gc=False):
    """Several effects, in order."""

    effects: tuple[Effect, ...]


Effect: TypeAlias = Broadcast | Direct | Move | Close | CatchUp | Several
