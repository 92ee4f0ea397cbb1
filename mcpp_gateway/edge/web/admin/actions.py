"""What an admin may do: close connections, revoke tokens, stop the gateway."""

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from mcpp.errors import McppError
from mcpp_gateway.config import ConfigError
from mcpp_gateway.core.effects import KICKED
from mcpp_gateway.edge.admission import Denial
from mcpp_gateway.edge.session_log import log_session
from mcpp_gateway.edge.web.admin.scope import BadRequestError, Scope
from mcpp_gateway.tokens.revocations import TooManyRevocationsError, UnknownNameError

if TYPE_CHECKING:
    from mcpp_gateway.edge.connection import ServerConnection


class KickRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which connections to close: one by its id, or those of a participant."""

    connection: str | None = None
    pod: str | None = None
    participant: str | None = None


class RevokeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which signed tokens to revoke: one by its id, or all of a participant."""

    name: str


class DrainRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stop the gateway in order."""


class Done(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many connections an action has closed, and what else there is to know."""

    closed: int
    note: str = ""


_NOT_KEPT: Final = "until the gateway restarts: without [tokens] revocations are not stored"
_NOT_STORED: Final = "revoked, but not stored, so that a restart forgets it; mend this and repeat"
_OUT_OF_REACH: Final = "nothing is revoked: the cluster's log is out of reach; try again"
_CONFIGURED: Final = "its token in the configuration stays valid: change it there, and reload"
_NOT_CONNECTED: Final = "nothing here is connected by that name: check the spelling"
_ELSEWHERE: Final = "it is connected at another gateway: a kick is for the gateway that is asked"
_NOT_KNOWN: Final = (
    "no token of that name is known here: it is revoked in case another issuer has signed one, "
    "so check the spelling"
)


def _kick(scope: Scope, wanted: KickRequest) -> Done:
    if wanted.connection is None and wanted.participant is None:
        raise BadRequestError("name a connection or a participant")
    if wanted.pod is not None:
        scope.check_pod(wanted.pod)

    def is_meant(connection: "ServerConnection") -> bool:
        peer = connection.peer
        return (
            peer is not None
            and wanted.connection in (None, connection.request)
            and wanted.pod in (None, peer.pod.name)
            and wanted.participant in (None, peer.session.member.settings.id)
        )

    closed = [connection for connection in scope.connections if is_meant(connection)]
    for connection in closed:
        log_session("kicked", connection)
        connection.close(KICKED, "closed by the operator")
    if wanted.connection is None and _is_elsewhere(scope, wanted):
        return Done(len(closed), _ELSEWHERE)
    return Done(len(closed), "" if closed else _NOT_CONNECTED)


def _is_elsewhere(scope: Scope, wanted: KickRequest) -> bool:
    pods = (pod for pod in scope.pods if wanted.pod in (None, pod.name))
    return any(pod.sessions_elsewhere(wanted.participant or "") for pod in pods)


def _revoke(scope: Scope, wanted: RevokeRequest) -> Awaitable[Done | Denial]:
    scope.check_whole("a revocation")
    if not wanted.name:
        raise BadRequestError("name a participant or a token")
    return _revoke_everywhere(scope, wanted.name)


async def _revoke_everywhere(scope: Scope, name: str) -> Done | Denial:
    gateway = scope.gateway
    is_configured = any(pod.members.is_configured(name) for pod in gateway.pods.values())
    try:
        found = await gateway.revoke(name)
    except UnknownNameError as error:
        return Denial(404, f"{error}; {_CONFIGURED}" if is_configured else str(error))
    except ConfigError as error:
        return Denial(400, str(error))
    except TooManyRevocationsError as error:
        return Denial(507, str(error))
    except McppError as error:
        return Denial(503, f"{_OUT_OF_REACH} ({error})", retry_after_seconds=5)
    if found.not_stored:
        closed = f"connections closed: {found.closed}"
        return Denial(500, f"{_NOT_STORED}: {found.not_stored}; {closed}")
    is_kept = gateway.cluster is not None or gateway.config.token_folder is not None
    notes = (
        (_NOT_KNOWN, not found.was_known),
        (_NOT_KEPT, not is_kept),
        (_CONFIGURED, is_configured),
    )
    return Done(found.closed, "; ".join(text for text, applies in notes if applies))


def _drain(scope: Scope, wanted: DrainRequest) -> Done:
    scope.check_whole("draining")
    scope.gateway.on_drain_request()
    return Done(len(scope.connections))


ACTIONS: Final[Mapping[str, tuple[Any, Callable[[Scope, Any], Any]]]] = {
    "kick": (KickRequest, _kick),
    "revoke": (RevokeRequest, _revoke),
    "drain": (DrainRequest, _drain),
}
