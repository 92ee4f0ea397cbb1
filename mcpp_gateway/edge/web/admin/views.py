"""What the admin's interface shows: structs, which are also the schema of its documentation."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

import mcpp
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.edge.web.admin.scope import BadRequestError, Scope

if TYPE_CHECKING:
    from mcpp_gateway.edge.connection import ServerConnection
    from mcpp_gateway.edge.server import Gateway

_Query = Mapping[str, str]


class GatewayStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one gateway process; counts are of the pods asked for that the token is for."""

    version: str
    uptime_seconds: float
    draining: bool
    log: str
    log_accepting: bool
    log_reachable: bool
    pods: int
    connections: int
    unsent_bytes: int
    revocations: int | None  # which are for all pods; None: the token is for some


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
    lag: int  # about how many entries of the log it has yet to be sent
    unsent_bytes: int
    expires: float | None  # Unix time at which its token expires


def lag(connection: "ServerConnection") -> int:
    """Return about how many entries of the log a connection has yet to be sent.

    Of what was written to it and the system has not accepted, only the bytes are known: counting
    would cost every write. They are taken for envelopes of the pod's mean size.
    """
    peer = connection.peer
    if peer is None:
        return 0
    session, traffic = peer.session, peer.traffic
    unread = 0 if session.audience is not None else peer.pod.journal.end - session.position
    unsent = -(-connection.waiting_bytes * traffic.delivered // max(1, traffic.sent_bytes))
    return max(0, unread) + unsent


def _status(scope: Scope, query: _Query) -> GatewayStatus:
    gateway, pods = scope.gateway, _pods(scope, query)
    revocations = 0 if gateway.tokens is None else len(gateway.tokens.revocations)
    return GatewayStatus(
        version=mcpp.__version__,
        uptime_seconds=round(gateway.hub.clock() - gateway.started, 3),
        draining=gateway.draining,
        log=gateway.config.log.kind,
        log_accepting=gateway.has_space,
        log_reachable=gateway.is_log_reachable,
        pods=len(pods),
        connections=sum(pod.members.sessions for pod in pods),
        unsent_bytes=sum(
            each.waiting_bytes for each in scope.connections if each.peer and each.peer.pod in pods
        ),
        revocations=revocations if scope.is_whole else None,
    )


def _pod_status(pod: PodCore) -> PodStatus:
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


def _participants_of(pod: PodCore) -> Iterator[ParticipantStatus]:
    for id in pod.members.known():
        member = pod.members.present.get(id)
        yield ParticipantStatus(
            pod=pod.name,
            id=id,
            present=member is not None,
            connections=0 if member is None else len(member.sessions),
            issuer=pod.members.owner(id),
        )


def _connection_status(gateway: "Gateway", connection: "ServerConnection") -> ConnectionStatus:
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
        lag=lag(connection),
        unsent_bytes=connection.waiting_bytes,
        expires=None if grant is None else grant.until,
    )


def _pods(scope: Scope, query: _Query) -> list[PodCore]:
    if "participant" in query:
        raise BadRequestError("unknown: 'participant'")
    return [pod for pod in scope.pods if query.get("pod", pod.name) == pod.name]


def _connections(scope: Scope, query: _Query) -> list[ConnectionStatus]:
    found = [_connection_status(scope.gateway, each) for each in scope.connections]
    return [
        each
        for each in found
        if query.get("pod", each.pod) == each.pod
        and query.get("participant", each.participant) == each.participant
    ]


def _limits(scope: Scope, query: _Query) -> PodLimits:
    participant = query.get("participant")
    if "pod" not in query:
        if participant is not None:
            raise BadRequestError("name the pod of the participant, too")
        return scope.gateway.config.limits
    pod = scope.gateway.pods[query["pod"]]
    if participant is None:
        return pod.limits
    if participant not in pod.members.known():
        raise BadRequestError("no such participant in this pod")
    return pod.members.limits(participant)


VIEWS: Final[Mapping[str, Callable[[Scope, _Query], Any]]] = {
    "status": _status,
    "pods": lambda scope, query: [_pod_status(pod) for pod in _pods(scope, query)],
    "participants": lambda scope, query: [
        each for pod in _pods(scope, query) for each in _participants_of(pod)
    ],
    "connections": _connections,
    "limits": _limits,
}
