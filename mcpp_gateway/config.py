"""The configuration: a TOML file, overridden by the environment, checked and frozen.

Any mistake raises one `ConfigError` that names the key and, if it can be found, the line of the
file.
"""

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from mcpp.errors import CapabilityError, FilterError, McppError
from mcpp.filters import Filter, everything
from mcpp.filters import parse as parse_filter
from mcpp.protocol.capabilities import Capabilities
from mcpp.protocol.envelope import PARTICIPANT_PATTERN
from mcpp.protocol.validation import path_and_reason
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings

_T = TypeVar("_T")

_is_participant = re.compile(PARTICIPANT_PATTERN).fullmatch
_is_pod_name = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}").fullmatch
_is_cluster_name = re.compile(r"[a-z0-9_-]{1,32}").fullmatch
is_token = re.compile(r"[A-Za-z0-9._~-]{1,512}").fullmatch
_POD_RULE: Final = (
    "a pod name has 1 to 64 characters of A-Z a-z 0-9 . _ - and begins with none of . -"
)
_PARTICIPANT_RULE: Final = "a participant id has 1 to 64 characters of A-Z a-z 0-9 . _ : @ -"
_TOKEN_RULE: Final = "a token has 1 to 512 characters of A-Z a-z 0-9 . _ ~ -"
_SHORT_TOKEN: Final = 16
# Each context stores all its ancestors, and the tree is walked by recursion.
_MAX_CONTEXT_DEPTH: Final = 64


class ConfigError(McppError):
    """An invalid configuration, described in one line."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class GatewaySection(_Section, frozen=True):
    """The section `[gateway]`: where and how to listen."""

    host: str = "127.0.0.1"
    port: int = 8787
    allowed_origins: list[str] = []
    tls_cert: str | None = None
    tls_key: str | None = None
    log_format: Literal["text", "json"] = "text"
    ping_seconds: float = 20.0
    handshake_seconds: float = 10.0
    drain_seconds: float = 8.0
    metrics_token: str | None = None
    max_outbox_bytes: int = 268_435_456  # unsent data of all pods together


class RetentionSection(_Section, frozen=True):
    """The section `[log.retention]`: how much of each pod's log is kept. 0 is no limit."""

    max_age_days: float = 0.0
    max_bytes: int = 0


class LogSection(_Section, frozen=True):
    """The section `[log]`: where the pods' logs are kept."""

    kind: Literal["memory", "file", "jetstream"] = "memory"
    path: str = "data"
    fsync: Literal["always", "interval"] = "always"
    interval_ms: float = 100.0
    rejoin_seconds: float = 30.0
    segment_bytes: int = 67_108_864
    reserve_bytes: int = 16_777_216
    retention: RetentionSection = RetentionSection()


class ClusterSection(_Section, frozen=True):
    """The section `[cluster]`: the NATS servers that keep the logs of all gateways."""

    servers: list[str] = []
    name: str = "mcpp"  # begins the names of subjects and streams
    replicas: int = 3
    unreachable_seconds: float = 15.0  # without an answer of the log, until clients are closed
    credentials: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None


class ParticipantSection(_Section, frozen=True):
    """A participant: its token in exactly one of four forms (G-46), and its rights."""

    token: str | None = None
    token_sha256: str | None = None
    token_file: str | None = None
    token_env: str | None = None
    capabilities: list[dict[str, Any]] = []
    multiple: bool = False
    hears: dict[str, Any] | None = None


class PodSection(_Section, frozen=True):
    """A pod and its participants."""

    participants: dict[str, ParticipantSection] = {}


class Sections(_Section, frozen=True):
    """The configuration file as it is written."""

    gateway: GatewaySection = GatewaySection()
    limits: PodLimits = PodLimits()
    log: LogSection = LogSection()
    cluster: ClusterSection = ClusterSection()
    pods: dict[str, PodSection] = {}


class Config(msgspec.Struct, frozen=True):
    """A checked configuration. It holds digests of tokens, not tokens."""

    gateway: GatewaySection
    limits: PodLimits
    log: LogSection
    pods: dict[str, tuple[ParticipantSettings, ...]]
    tokens: dict[bytes, tuple[str, str]]  # SHA-256 of a token → pod, participant
    warnings: tuple[str, ...] = ()
    cluster: ClusterSection = ClusterSection()


def load(
    path: Path,
    environment: Mapping[str, str] = os.environ,
    log: Mapping[str, Any] | None = None,
) -> Config:
    """Read and check a configuration file. `log` is used if the file has no section `[log]`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{path}: cannot read the file: {reason}") from None
    return parse(text, environment, name=str(path), folder=path.parent, log=log)


def parse(
    text: str,
    environment: Mapping[str, str],
    *,
    name: str = "config",
    folder: Path = Path(),
    log: Mapping[str, Any] | None = None,
) -> Config:
    """Parse and check the text of a configuration."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from None
    if log is not None:
        document.setdefault("log", dict(log))
    overridden = _override(document, environment)
    try:
        return _check(_sections(document), environment, folder)
    except _BadKeyError as error:
        if error.key in overridden:
            raise ConfigError(f"{overridden[error.key]}: {error.reason}") from None
        raise ConfigError(f"{_at(name, text, error.key)}: {error.reason}") from None


def digest(token: str) -> bytes:
    """Return the SHA-256 of a token, which is all that the gateway keeps of it."""
    return hashlib.sha256(token.encode()).digest()


# --- checking ------------------------------------------------------------------------------------


class _BadKeyError(Exception):
    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason


def _sections(document: dict[str, Any]) -> Sections:
    # Participants first and one by one: msgspec does not report the key of a dict's bad value.
    for pod, section in _tables(document, "pods"):
        for id, participant in _tables(section, "participants"):
            _convert(participant, ParticipantSection, f"pods.{pod}.participants.{id}")
        _convert(section, PodSection, f"pods.{pod}")
    return _convert(document, Sections, "")


def _tables(table: Any, key: str) -> Iterable[tuple[str, Any]]:
    inner = table.get(key) if isinstance(table, dict) else None
    return inner.items() if isinstance(inner, dict) else ()


def _convert(value: Any, type: type[_T], key: str) -> _T:
    try:
        return msgspec.convert(value, type)
    except msgspec.ValidationError as error:
        path, reason = path_and_reason(error)
        inner = _mentioned_key(path.lstrip("."), reason)
        raise _BadKeyError(".".join(filter(None, (key, inner))), reason) from None


def _check(sections: Sections, environment: Mapping[str, str], folder: Path) -> Config:
    _check_gateway(sections.gateway)
    _check_limits(sections.limits)
    _check_log(sections.log)
    _check_cluster(sections)
    pods: dict[str, tuple[ParticipantSettings, ...]] = {}
    tokens: dict[bytes, tuple[str, str]] = {}
    warnings: list[str] = []
    for pod, section in sections.pods.items():
        if not _is_pod_name(pod):
            raise _BadKeyError(f"pods.{pod}", _POD_RULE)
        settings = []
        for id, participant in section.participants.items():
            key = f"pods.{pod}.participants.{id}"
            if not _is_participant(id):
                raise _BadKeyError(key, _PARTICIPANT_RULE)
            if id.startswith("system:"):
                raise _BadKeyError(key, "ids that start with system: are reserved for the gateway")
            secret = _token_digest(participant, key, environment, folder, warnings)
            if secret in tokens:
                other = ".participants.".join(tokens[secret])
                raise _BadKeyError(key, f"has the same token as pods.{other}")
            tokens[secret] = (pod, id)
            capabilities, hears = _capabilities(participant, key), _hears(participant, key)
            settings.append(ParticipantSettings(id, capabilities, participant.multiple, hears))
        pods[pod] = tuple(settings)
    gateway = sections.gateway
    if gateway.metrics_token is not None and digest(gateway.metrics_token) in tokens:
        raise _BadKeyError("gateway.metrics_token", "is also the token of a participant")
    if gateway.tls_cert is not None and gateway.tls_key is not None:
        cert, key = str(folder / gateway.tls_cert), str(folder / gateway.tls_key)
        gateway = msgspec.structs.replace(gateway, tls_cert=cert, tls_key=key)
    log = msgspec.structs.replace(sections.log, path=str(folder / sections.log.path))
    files = ("credentials", "tls_ca", "tls_cert", "tls_key")
    given = {name: getattr(sections.cluster, name) for name in files}
    paths = {name: path and str(folder / path) for name, path in given.items()}
    cluster = msgspec.structs.replace(sections.cluster, **paths)
    return Config(gateway, sections.limits, log, pods, tokens, tuple(warnings), cluster)


def _check_gateway(gateway: GatewaySection) -> None:
    if not 0 <= gateway.port <= 65535:
        raise _BadKeyError("gateway.port", "must be 0 to 65535")
    if (gateway.tls_cert is None) != (gateway.tls_key is None):
        raise _BadKeyError("gateway.tls_cert", "tls_cert and tls_key must be set together")
    for origin in gateway.allowed_origins:
        if not _is_origin(origin):
            reason = f"{origin!r} is not an origin, such as https://example.org"
            raise _BadKeyError("gateway.allowed_origins", reason)
    if gateway.metrics_token is not None and not is_token(gateway.metrics_token):
        raise _BadKeyError("gateway.metrics_token", _TOKEN_RULE)
    if not 1 << 20 <= gateway.max_outbox_bytes <= _LARGEST_LIMIT:
        raise _BadKeyError("gateway.max_outbox_bytes", "must be at least 1 MiB")
    for name in ("ping_seconds", "handshake_seconds", "drain_seconds"):
        if not 0 < getattr(gateway, name) < 86_400:
            raise _BadKeyError(f"gateway.{name}", "must be more than 0 and less than 86400")


def _check_log(log: LogSection) -> None:
    if not log.path:
        raise _BadKeyError("log.path", "must name a folder")
    if not 1 <= log.interval_ms <= 60_000:
        raise _BadKeyError("log.interval_ms", "must be 1 to 60000")
    if not 0 <= log.rejoin_seconds <= 3600:
        raise _BadKeyError("log.rejoin_seconds", "must be 0 to 3600")
    if not 1 << 20 <= log.segment_bytes <= 1 << 32:
        raise _BadKeyError("log.segment_bytes", "must be 1 MiB to 4 GiB")
    if not 1 << 20 <= log.reserve_bytes <= 1 << 30:
        raise _BadKeyError("log.reserve_bytes", "must be 1 MiB to 1 GiB")
    if not 0 <= log.retention.max_age_days <= 36_500:
        raise _BadKeyError("log.retention.max_age_days", "must be 0 (no limit) to 36500")
    if log.retention.max_bytes and log.retention.max_bytes < 1 << 20:
        raise _BadKeyError("log.retention.max_bytes", "must be 0 (no limit) or at least 1 MiB")


def _check_cluster(sections: Sections) -> None:
    cluster, log = sections.cluster, sections.log
    if log.kind != "jetstream":
        return
    if not cluster.servers:
        raise _BadKeyError("cluster.servers", 'log.kind = "jetstream" needs NATS servers')
    for server in cluster.servers:
        if not _is_server(server):
            reason = f"{server!r} is not an address such as nats://host:4222"
            raise _BadKeyError("cluster.servers", reason)
    if not _is_cluster_name(cluster.name):
        raise _BadKeyError("cluster.name", "has 1 to 32 characters of a-z 0-9 _ -")
    if cluster.replicas not in (1, 3, 5):
        raise _BadKeyError("cluster.replicas", "must be 1, 3 or 5")
    if not 1 <= cluster.unreachable_seconds <= 3600:
        raise _BadKeyError("cluster.unreachable_seconds", "must be 1 to 3600")
    if (cluster.tls_cert is None) != (cluster.tls_key is None):
        raise _BadKeyError("cluster.tls_cert", "tls_cert and tls_key must be set together")
    if log.retention.max_bytes and log.retention.max_bytes < _CLUSTER_RETENTION_BYTES:
        reason = "must be 0 (no limit) or at least 256 MiB with jetstream"
        raise _BadKeyError("log.retention.max_bytes", reason)


_CLUSTER_RETENTION_BYTES: Final = 256 << 20  # several times what is between two states


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


_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def _check_limits(limits: PodLimits) -> None:
    for name in PodLimits.__struct_fields__:
        value = getattr(limits, name)
        lowest = 0 if name in _MAY_BE_ZERO else 1 if isinstance(value, int) else 0.001
        if not (lowest <= value <= _LARGEST_LIMIT and (value == 0 or value >= 0.001)):
            reason = f"must be at least {lowest} and at most {_LARGEST_LIMIT}"
            raise _BadKeyError(f"limits.{name}", reason)
    if limits.max_context_depth > _MAX_CONTEXT_DEPTH:
        raise _BadKeyError("limits.max_context_depth", f"must be at most {_MAX_CONTEXT_DEPTH}")
    if limits.outbox_bytes < 4 * limits.max_message_bytes:
        reason = "must be at least 4 times max_message_bytes, or one message could fill it"
        raise _BadKeyError("limits.outbox_bytes", reason)
    if limits.pod_outbox_bytes < limits.outbox_bytes:
        raise _BadKeyError("limits.pod_outbox_bytes", "must be at least outbox_bytes")


# Some systems cannot handle larger numbers of bytes.
_LARGEST_LIMIT: Final = 2**40

_MAY_BE_ZERO: Final = {
    "messages_per_second",
    "context_messages_per_second",
    "max_contexts_per_participant",
    "max_contexts_per_pod",
    "max_context_depth",
    "max_dormant_contexts",
    "history_messages",
    "history_bytes",
}


def _token_digest(
    participant: ParticipantSection,
    key: str,
    environment: Mapping[str, str],
    folder: Path,
    warnings: list[str],
) -> bytes:
    stated = [
        name
        for name in ("token", "token_sha256", "token_file", "token_env")
        if getattr(participant, name) is not None
    ]
    if len(stated) != 1:
        reason = "needs exactly one of token, token_sha256, token_file, token_env"
        raise _BadKeyError(key, reason)
    if participant.token_sha256 is not None:
        if not re.fullmatch(r"[0-9a-fA-F]{64}", participant.token_sha256):
            raise _BadKeyError(f"{key}.token_sha256", "must be 64 hexadecimal digits")
        return bytes.fromhex(participant.token_sha256)
    where = f"{key}.{stated[0]}"
    token = participant.token
    if participant.token_file is not None:
        try:
            token = (folder / participant.token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            raise _BadKeyError(where, "the file cannot be read") from None
    elif participant.token_env is not None:
        token = environment.get(participant.token_env)
        if token is None:
            raise _BadKeyError(where, f"the variable {participant.token_env} is not set")
    # The message must not contain the token: it ends up in logs.
    if token is None or not is_token(token):
        raise _BadKeyError(where, _TOKEN_RULE)
    if len(token) < _SHORT_TOKEN:
        warnings.append(f"{where} is shorter than {_SHORT_TOKEN} characters and can be guessed")
    return digest(token)


def _capabilities(participant: ParticipantSection, key: str) -> Capabilities:
    try:
        return Capabilities(participant.capabilities)
    except CapabilityError as error:
        raise _BadKeyError(f"{key}.capabilities", f"{error.path[1:]} {error.reason}") from None


def _hears(participant: ParticipantSection, key: str) -> Filter:
    if participant.hears is None:
        return everything
    try:
        return parse_filter(participant.hears)
    except FilterError as error:
        raise _BadKeyError(f"{key}.hears", f"{error.path[1:]} {error.reason}".strip()) from None


# --- environment, and the place of a mistake -----------------------------------------------------


def _override(document: dict[str, Any], environment: Mapping[str, str]) -> dict[str, str]:
    """Apply variables such as `MCPP_LIMITS__BURST=10`; return the variable of each key set."""
    overridden = {}
    for variable in sorted(environment):
        section, separator, rest = variable.removeprefix("MCPP_").lower().partition("__")
        if not (variable.startswith("MCPP_") and separator):
            continue
        if section not in ("gateway", "limits", "log", "cluster"):
            known = "MCPP_GATEWAY__…, MCPP_LIMITS__…, MCPP_LOG__… and MCPP_CLUSTER__…"
            raise ConfigError(f"{variable}: unknown; the environment can set {known}")
        if not isinstance(document.setdefault(section, {}), dict):
            continue  # a mistake in the file, reported later
        text = environment[variable]
        document[section][rest] = text if rest in _TEXT_KEYS else _toml_value(text)
        overridden[f"{section}.{rest}"] = variable
    return overridden


# Strings, even if they look like numbers: a token may consist of digits.
_TEXT_KEYS: Final = {
    field.name
    for section in (GatewaySection, LogSection, ClusterSection)
    for field in msgspec.structs.fields(section)
    if field.type in (str, str | None)
}


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _mentioned_key(path: str, reason: str) -> str:
    unknown = re.search(r"unknown field `([^`]*)`", reason)
    parts = [part for part in (path, unknown[1] if unknown else "") if part]
    return ".".join(parts)


def _at(name: str, text: str, key: str) -> str:
    """Return the place of a key: the file, the line if it can be found, and the key."""
    for number, found in _keys(text):
        if found == key:
            return f"{name}:{number}: {key}"
    return f"{name}: {key}" if key else name


def _keys(text: str) -> Iterator[tuple[int, str]]:
    """Yield the dotted keys that a TOML text sets, with their lines. Approximate."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line):
            table = _plain_key(header[1])
            yield number, table
        elif assignment := re.match(r"\s*([A-Za-z0-9_.\"'@:-]+)\s*=", line):
            key = _plain_key(assignment[1])
            yield number, f"{table}.{key}" if table else key


def _plain_key(key: str) -> str:
    return re.sub(r"\s*\.\s*", ".", key.replace('"', "").replace("'", ""))
