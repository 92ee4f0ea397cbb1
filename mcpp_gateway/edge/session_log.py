"""Log lines about connections: who joined, left, was refused or closed, from where and why."""

import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mcpp_gateway.edge.connection import ServerConnection

logger = logging.getLogger("mcpp.gateway")


def log_session(
    event: str, connection: "ServerConnection", level: int = logging.INFO, /, **more: Any
) -> None:
    """Log what happened to a connection. `request` is the same in all lines about it."""
    facts: dict[str, Any] = {"request": connection.request, "address": connection.address}
    peer = connection.peer
    if peer is not None:
        facts |= {"pod": peer.pod.name, "participant": peer.session.member.settings.id}
    logger.log(level, event, extra={**facts, **more})
