"""What the admin's interface shows: structs, which are also the schema of its documentation."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

import mcpp
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore

if TYPE_CHECKING:
    from mcpp_gateway.edge.connection import ServerConnection
    from mcpp_gateway.edge.server import Gateway


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one gateway process."""

    version: str
    uptime_seconds: float
    draining: bool
    log: str
    log_accepting: bool
    log_reachable: bool
    pods: int
    connections: int
    unsent_bytes: int
    revocations: int


class PodStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one pod at this gateway."""

    name: str
    epoch: str
    participants: int
    connections: int
    contexts: int
    log_start: int
    log_end: int
    refused: dict[str, int]


class ParticipantStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A participant that is configured, or present with a signed token."""

    pod: str
    id: str
    present: bool
    connections: int
    issuer: str | None  # of its signed token; None: it is configured


class ConnectionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One connection."""

    id: str  # as in the log's lines: `request`
    pod: str
    participant: str
    address: str
    client: str  # as it names itself
    connected_seconds: float
    lag: int  # entries of the log that it has yet to be sent
    unsent_bytes: int
    expires: float | None  # Unix time at which its token expires


def gateway_status(gateway: "Gateway") -> GatewayStatus:
    """Return the state of a gateway."""
    return GatewayStatus(
        version=mcpp.__version__,
        uptime_seconds=round(gateway.hub.clock() - gateway.started, 3),
        draining=gateway.draining,
        log=gateway.config.log.kind,
        log_accepting=gateway.has_space,
        log_reachable=gateway.is_log_reachable,
        pods=len(gateway.pods),
        connections=sum(pod.members.sessions for pod in gateway.pods.values()),
        unsent_bytes=gateway.outbox_bytes(),
        revocations=0 if gateway.tokens is None else len(gateway.tokens.revocations),
    )


def pod_status(pod: PodCore) -> PodStatus:
    """Return the state of a pod."""
    return PodStatus(
        name=pod.name,
        epoch=pod.epoch,
        participants=len(pod.participants),
        connections=pod.members.sessions,
        contexts=len(pod.tree),
        log_start=pod.journal.start,
        log_end=pod.journal.end,
        refused=dict(pod.refused),
    )


def participants(pod: PodCore) -> Iterator[ParticipantStatus]:
    """Yield the participants of a pod that are known here."""
    for id in pod.members.known():
        member = pod.members.present.get(id)
        yield ParticipantStatus(
            pod=pod.name,
            id=id,
            present=member is not None,
            connections=0 if member is None else len(member.sessions),
            issuer=pod.members.owner(id),
        )


def connection_status(gateway: "Gateway", connection: "ServerConnection") -> ConnectionStatus:
    """Return the state of a connection that has joined."""
    peer = connection.peer
    assert peer is not None
    grant = gateway.leases.grant(connection)
    session = peer.session
    return ConnectionStatus(
        id=connection.request,
        pod=peer.pod.name,
        participant=session.member.settings.id,
        address=connection.address,
        client=connection.client,
        connected_seconds=round(gateway.hub.clock() - session.joined, 3),
        lag=lag(peer.pod, connection),
        unsent_bytes=connection.waiting_bytes,
        expires=None if grant is None else grant.until,
    )


def lag(pod: PodCore, connection: "ServerConnection") -> int:
    """Return how many entries of the log a connection has yet to be sent."""
    session = None if connection.peer is None else connection.peer.session
    if session is None or session.audience is not None:
        return 0
    return max(0, pod.journal.end - session.position)


def limits_of(gateway: "Gateway", pod: str, participant: str | None) -> PodLimits:
    """Return the limits of a pod, or as they are for one of its participants."""
    found = gateway.pods[pod]
    return found.limits if participant is None else found.members.limits(participant)
