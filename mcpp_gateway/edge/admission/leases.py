"""Leases: connections whose token ends, by its expiry or because it was revoked.

A signed token expires by Unix time, which its issuer shares. A timer is not enough for that: it
stops while the machine is suspended, and does not know that the system's clock was set.
"""

import asyncio
from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from mcpp_gateway.core.effects import REVOKED, SESSION_EXPIRED, TOKEN_EXPIRED
from mcpp_gateway.core.joining.grants import GrantedSettings, have_equal_rights
from mcpp_gateway.edge.admission.control import Admission
from mcpp_gateway.edge.admission.sign_in import Identity

if TYPE_CHECKING:
    from mcpp_gateway.edge.connection import ServerConnection
    from mcpp_gateway.tokens.claims import Grant

Condition: TypeAlias = Callable[[GrantedSettings], bool]

_EXPIRED: Final = "the token has expired; reconnect with a newer one"


class _Lease(NamedTuple):
    """Whose connection it is, and what its signed token admits."""

    identity: Identity
    grant: "Grant"


class Leases:
    """The connections whose token ends. Owns a timer for each."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        in_force: Callable[[Identity], GrantedSettings | None],
    ) -> None:
        """`in_force` says which token decides for all connections of a participant (S-01)."""
        self._loop = loop
        self._clock = clock
        self._wall_clock = wall_clock
        self._timers: dict[ServerConnection, asyncio.TimerHandle] = {}
        self._leases: dict[ServerConnection, _Lease] = {}
        self._in_force = in_force

    def add(self, connection: "ServerConnection", admission: Admission) -> None:
        """Close a connection when its token expires, if it does."""
        if admission.until is None:
            return
        if admission.grant is None:
            code, reason, now = SESSION_EXPIRED, "the session has expired", self._clock()
        else:
            code, reason, now = TOKEN_EXPIRED, _EXPIRED, self._wall_clock()
            identity = admission.pod, admission.participant
            self._leases[connection] = _Lease(identity, admission.grant)
        wait = max(0.0, admission.until - now)
        self._timers[connection] = self._loop.call_later(wait, connection.close, code, reason)

    def check(self) -> None:
        """Close connections whose signed token has expired; called about once a second."""
        now = self._wall_clock()
        self._close(lambda grant: grant.until <= now, TOKEN_EXPIRED, _EXPIRED)

    def forget(self, connection: "ServerConnection") -> None:
        """Forget a connection that is closed."""
        self._leases.pop(connection, None)
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def grants(self) -> Iterator[tuple["ServerConnection", "Grant"]]:
        """Yield the connections that signed tokens admitted, with what these admit."""
        for connection, lease in list(self._leases.items()):
            yield connection, lease.grant

    def grant(self, connection: "ServerConnection") -> "Grant | None":
        """Return what a connection's signed token admits."""
        lease = self._leases.get(connection)
        return None if lease is None else lease.grant

    def has_token(self, token_id: str) -> bool:
        """Return whether a token with this id admitted a connection."""
        return any(grant.token_id == token_id for _, grant in self.grants())

    def revoke(self, is_revoked: Condition) -> list["ServerConnection"]:
        """Close the connections with revoked tokens, and return them."""
        return self._close(is_revoked, REVOKED, "token revoked")

    def leave_pods(self, kept: Container[str]) -> list["ServerConnection"]:
        """Close the connections to pods other than these, and return them."""
        leases = list(self._leases.items())
        closed = [connection for connection, (identity, _) in leases if identity[0] not in kept]
        for connection in closed:
            connection.close(REVOKED, "pod removed")
        return closed

    def end_withdrawn(self, is_withdrawn: Condition) -> list["ServerConnection"]:
        """Close the connections of keys that their issuers do not use any more; return them."""
        reason = "the token's key was withdrawn; reconnect with another"
        return self._close(is_withdrawn, TOKEN_EXPIRED, reason)

    def end(self, is_changed: Condition) -> None:
        """Close connections whose issuer has changed, so that they come back with other rights."""
        self._close(is_changed, TOKEN_EXPIRED, "the issuer's rights have changed; reconnect")

    def _close(self, has_ended: Condition, code: int, reason: str) -> list["ServerConnection"]:
        """Close the connections whose token has ended, and return them."""
        closed = [each for each, grant in self.grants() if each.is_open and has_ended(grant)]
        for connection in closed:
            connection.close(code, reason)
        self._end_outlived(has_ended)
        return closed

    def _end_outlived(self, has_ended: Condition) -> None:
        """Close connections that have the rights of a token that has ended, and not their own.

        In a cluster that token may have joined elsewhere, and one that is joining here is not in
        force yet.
        """
        for connection, (identity, grant) in list(self._leases.items()):
            last = self._in_force(identity)
            if last is None or not has_ended(last) or has_ended(grant) or not connection.has_joined:
                continue
            if not have_equal_rights(grant, last):
                connection.close(TOKEN_EXPIRED, "the rights of another token have ended; reconnect")
