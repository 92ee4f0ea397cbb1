"""Checks of the sections that describe the gateway, its limits, its log and its cluster."""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from mcpp_gateway.config.errors import BadKeyError
from mcpp_gateway.config.participants import TOKEN_RULE, is_token
from mcpp_gateway.config.sections import GatewaySection, LogSection, Sections, without_user
from mcpp_gateway.core.limits import ParticipantLimits, PodLimits

_is_cluster_name = re.compile(r"[a-z0-9_-]{1,32}").fullmatch
# Each context stores all its ancestors, and the tree is walked by recursion.
_MAX_CONTEXT_DEPTH: Final = 64
# Several times what is between two states.
_CLUSTER_RETENTION_BYTES: Final = 256 << 20
_CLUSTER_RETENTION_DAYS: Final = 0.1
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
# Some systems cannot handle larger numbers of bytes.
_LARGEST_LIMIT: Final = 2**40

_FILLED: Final = "or one message could fill it"
_MAY_BE_ZERO: Final = {
    "messages_per_second",
    "context_messages_per_second",
    "max_contexts_per_participant",
    "max_contexts_per_pod",
    "max_context_depth",
    "max_dormant_contexts",
    "max_hops",
    "history_messages",
    "history_bytes",
    "max_blob_bytes",
    "max_blob_bytes_per_participant",
    "max_blob_bytes_per_pod",
}


def check_gateway(gateway: GatewaySection) -> None:
    """Check where and how to listen."""
    if not 0 <= gateway.port <= 65535:
        raise BadKeyError("gateway.port", "must be 0 to 65535")
    if (gateway.tls_cert is None) != (gateway.tls_key is None):
        raise BadKeyError("gateway.tls_cert", "tls_cert and tls_key must be set together")
    for origin in gateway.allowed_origins:
        if not _is_origin(origin):
            reason = f"{origin!r} is not an origin, such as https://example.org"
            raise BadKeyError("gateway.allowed_origins", reason)
    for proxy in gateway.trusted_proxies:
        mistake = _network_mistake(proxy)
        if mistake is not None:
            raise BadKeyError("gateway.trusted_proxies", mistake)
    if gateway.metrics_token is not None and not is_token(gateway.metrics_token):
        raise BadKeyError("gateway.metrics_token", TOKEN_RULE)
    if not 1 << 20 <= gateway.max_outbox_bytes <= _LARGEST_LIMIT:
        raise BadKeyError("gateway.max_outbox_bytes", "must be at least 1 MiB")
    for name in ("ping_seconds", "handshake_seconds", "drain_seconds"):
        if not 0 < getattr(gateway, name) < 86_400:
            raise BadKeyError(f"gateway.{name}", "must be more than 0 and less than 86400")


def check_log(log: LogSection) -> None:
    """Check where the logs are kept."""
    if not log.path:
        raise BadKeyError("log.path", "must name a folder")
    if not 1 <= log.interval_ms <= 60_000:
        raise BadKeyError("log.interval_ms", "must be 1 to 60000")
    if not 0 <= log.rejoin_seconds <= 3600:
        raise BadKeyError("log.rejoin_seconds", "must be 0 to 3600")
    if not 1 << 20 <= log.segment_bytes <= 1 << 32:
        raise BadKeyError("log.segment_bytes", "must be 1 MiB to 4 GiB")
    if not 1 << 20 <= log.reserve_bytes <= 1 << 30:
        raise BadKeyError("log.reserve_bytes", "must be 1 MiB to 1 GiB")
    if not 0 <= log.retention.max_age_days <= 36_500:
        raise BadKeyError("log.retention.max_age_days", "must be 0 (no limit) to 36500")
    if log.retention.max_bytes and log.retention.max_bytes < 1 << 20:
        raise BadKeyError("log.retention.max_bytes", "must be 0 (no limit) or at least 1 MiB")


def check_cluster(sections: Sections) -> None:
    """Check the cluster, if the logs are kept there."""
    cluster, log = sections.cluster, sections.log
    if log.kind != "jetstream":
        return
    if not cluster.servers:
        raise BadKeyError("cluster.servers", 'log.kind = "jetstream" needs NATS servers')
    for server in cluster.servers:
        if not _is_server(server):
            reason = f"{without_user(server)!r} is not an address such as nats://host:4222"
            raise BadKeyError("cluster.servers", reason)
    if not _is_cluster_name(cluster.name):
        raise BadKeyError("cluster.name", "has 1 to 32 characters of a-z 0-9 _ -")
    if cluster.replicas not in (1, 3, 5):
        raise BadKeyError("cluster.replicas", "must be 1, 3 or 5")
    if not 1 <= cluster.unreachable_seconds <= 3600:
        raise BadKeyError("cluster.unreachable_seconds", "must be 1 to 3600")
    if (cluster.tls_cert is None) != (cluster.tls_key is None):
        raise BadKeyError("cluster.tls_cert", "tls_cert and tls_key must be set together")
    if log.retention.max_age_days and log.retention.max_age_days < _CLUSTER_RETENTION_DAYS:
        reason = "must be 0 (no limit) or at least 0.1 with jetstream"
        raise BadKeyError("log.retention.max_age_days", reason)
    if log.retention.max_bytes and log.retention.max_bytes < _CLUSTER_RETENTION_BYTES:
        reason = "must be 0 (no limit) or at least 256 MiB with jetstream"
        raise BadKeyError("log.retention.max_bytes", reason)


def _is_server(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in ("nats", "tls") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _is_origin(text: str) -> bool:
    """Return whether a text is an origin in the form that browsers send; others never match."""
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        return False
    if parts.scheme not in _DEFAULT_PORTS or not host:
        return False
    name = f"[{host}]" if ":" in host else host
    place = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return text == f"{parts.scheme}://{name}{place}"


def _network_mistake(text: str) -> str | None:
    """Return why a text is no address or network; those of IPv4 are compared as IPv4 (G-88)."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError as error:
        return f"{error}; write an address (10.0.0.1) or a network (10.0.0.0/8)"
    if isinstance(network, ipaddress.IPv6Network) and network.network_address.ipv4_mapped:
        return f"{text!r} is IPv4 mapped into IPv6; write it as IPv4"
    return None


def check_participant_limits(limits: ParticipantLimits, key: str) -> None:
    """Check the limits of a participant, or of an issuer's tokens."""
    for name in ParticipantLimits.__struct_fields__:
        value = getattr(limits, name)
        if value is not None:
            _check_limit(name, value, key)


def check_room(limits: ParticipantLimits, pod: PodLimits, key: str) -> None:
    """Check that the largest message of a participant leaves room in outboxes of its pod."""
    if 4 * (limits.max_message_bytes or 0) > pod.outbox_bytes:
        reason = f"must be at most a quarter of outbox_bytes ({pod.outbox_bytes}), {_FILLED}"
        raise BadKeyError(f"{key}.max_message_bytes", reason)


def _check_limit(name: str, value: float, key: str) -> None:
    lowest = 0 if name in _MAY_BE_ZERO else 1 if isinstance(value, int) else 0.001
    if not (lowest <= value <= _LARGEST_LIMIT and (value == 0 or value >= 0.001)):
        reason = f"must be at least {lowest} and at most {_LARGEST_LIMIT}"
        raise BadKeyError(f"{key}.{name}", reason)


def check_limits(limits: PodLimits, key: str = "limits") -> None:
    """Check the limits that a table sets."""
    for name in PodLimits.__struct_fields__:
        _check_limit(name, getattr(limits, name), key)
    if limits.max_context_depth > _MAX_CONTEXT_DEPTH:
        raise BadKeyError(f"{key}.max_context_depth", f"must be at most {_MAX_CONTEXT_DEPTH}")
    if limits.outbox_bytes < 4 * limits.max_message_bytes:
        reason = f"must be at least 4 times max_message_bytes, {_FILLED}"
        raise BadKeyError(f"{key}.outbox_bytes", reason)
    if limits.pod_outbox_bytes < limits.outbox_bytes:
        raise BadKeyError(f"{key}.pod_outbox_bytes", "must be at least outbox_bytes")
