"""Reads a configuration file and checks it."""

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from mcpp.protocol.envelope import POD_PATTERN
from mcpp.protocol.globs import compile_glob
from mcpp.protocol.validation import path_and_reason
from mcpp_gateway.config.checks import (
    check_cluster,
    check_gateway,
    check_limits,
    check_log,
    check_participant_limits,
    check_room,
)
from mcpp_gateway.config.environment import mentioned_key, override, place_of
from mcpp_gateway.config.errors import BadKeyError, ConfigError
from mcpp_gateway.config.issuers import OWN_ISSUER, IssuerSettings, read_issuer
from mcpp_gateway.config.participants import (
    TOKEN_FORMS,
    digest,
    id_mistake,
    read_capabilities,
    read_hears,
    token_digest,
)
from mcpp_gateway.config.sections import (
    ClusterSection,
    GatewaySection,
    IssuerSection,
    LogSection,
    ParticipantSection,
    PodSection,
    Sections,
)
from mcpp_gateway.config.warnings import of_file, unsafe
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings

_T = TypeVar("_T")

_is_pod_name = re.compile(POD_PATTERN).fullmatch
_TOKENS: Final = ("token", "metrics_token")
_POD_RULE: Final = (
    "a pod name has 1 to 64 characters of A-Z a-z 0-9 . _ - and begins with none of . -"
)


class Config(msgspec.Struct, frozen=True):
    """A checked configuration. It holds digests of tokens, not tokens."""

    gateway: GatewaySection
    limits: PodLimits
    log: LogSection
    pods: dict[str, tuple[ParticipantSettings, ...]]
    tokens: dict[bytes, tuple[str, str]]  # SHA-256 of a token → pod, participant
    warnings: tuple[str, ...] = ()
    cluster: ClusterSection = ClusterSection()
    issuers: tuple[IssuerSettings, ...] = ()
    token_folder: str | None = None  # the folder of the gateway's own tokens
    pod_limits: dict[str, PodLimits] = {}  # of those pods that have their own
    admin_token: bytes | None = None  # SHA-256
    admin_signed: bool = False  # whether signed tokens may have the role
    shares_tokens: bool = False  # the gateway's own tokens are kept in the cluster

    @property
    def admits_signed(self) -> bool:
        """Whether signed tokens may admit participants that are not configured."""
        return bool(self.issuers) or self.has_own_tokens

    @property
    def issuer_names(self) -> frozenset[str]:
        """The issuers whose tokens are accepted, with the gateway itself if it is one."""
        own = {OWN_ISSUER} if self.has_own_tokens else ()
        return frozenset([*own, *(each.name for each in self.issuers)])

    @property
    def has_own_tokens(self) -> bool:
        """Whether the gateway accepts tokens that `mcpp token` has signed."""
        return self.shares_tokens or self.token_folder is not None

    @property
    def key_folder(self) -> str | None:
        """Where keys of issuers are kept over a restart; None: they are not."""
        return self.token_folder if self.log.kind == "memory" else self.log.path

    @property
    def token_sources(self) -> tuple[object, ...]:
        """Where signed tokens may come from."""
        return self.issuers, self.token_folder, self.shares_tokens

    @property
    def largest_message_bytes(self) -> int:
        """The bytes that a message may have at most, of any participant in any pod."""
        own = [each.limits for settings in self.pods.values() for each in settings]
        own += [each.allow.limits for each in self.issuers]
        pods = (self.limits, *self.pod_limits.values())
        stated = [each.max_message_bytes or 0 for each in own]
        return max([*stated, *(each.max_message_bytes for each in pods)])

    def limits_of(self, pod: str) -> PodLimits:
        """Return the limits of a pod."""
        return self.pod_limits.get(pod, self.limits)


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
    config = parse(text, environment, name=str(path), folder=path.parent, log=log)
    more = tuple(of_file(path, _holds_secrets(tomllib.loads(text))))
    return msgspec.structs.replace(config, warnings=(*config.warnings, *more))


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
    overridden = override(document, environment)
    try:
        return _check(_sections(document), environment, folder)
    except BadKeyError as error:
        if error.key in overridden:
            raise ConfigError(f"{overridden[error.key]}: {error.reason}") from None
        raise ConfigError(f"{place_of(name, text, error.key)}: {error.reason}") from None


def _holds_secrets(document: Mapping[str, Any]) -> bool:
    """Return whether a checked document has tokens or passwords in it, however they are written."""
    for key, value in document.items():
        if isinstance(value, dict):
            if _holds_secrets(value):
                return True
        elif key in _TOKENS or (key == "servers" and "@" in str(value)):
            return True
    return False


def _sections(document: dict[str, Any]) -> Sections:
    # Participants first and one by one: msgspec does not report the key of a dict's bad value.
    for name, issuer in _tables(document, "issuers"):
        _convert(issuer, IssuerSection, f"issuers.{name}")
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
        inner = mentioned_key(path.lstrip("."), reason)
        raise BadKeyError(".".join(filter(None, (key, inner))), reason) from None


def _check(sections: Sections, environment: Mapping[str, str], folder: Path) -> Config:
    check_gateway(sections.gateway)
    check_limits(sections.limits)
    check_log(sections.log)
    check_cluster(sections)
    pods: dict[str, tuple[ParticipantSettings, ...]] = {}
    tokens: dict[bytes, tuple[str, str]] = {}
    warnings: list[str] = []
    pod_limits: dict[str, PodLimits] = {}
    for pod, section in sections.pods.items():
        if not _is_pod_name(pod):
            raise BadKeyError(f"pods.{pod}", _POD_RULE)
        if section.limits:
            pod_limits[pod] = _pod_limits(sections.limits, section.limits, f"pods.{pod}.limits")
        settings = []
        for id, participant in section.participants.items():
            key = f"pods.{pod}.participants.{id}"
            mistake = id_mistake(id)
            if mistake is not None:
                raise BadKeyError(key, mistake)
            secret = token_digest(participant, key, environment, folder, warnings)
            if secret in tokens:
                other = ".participants.".join(tokens[secret])
                raise BadKeyError(key, f"has the same token as pods.{other}")
            tokens[secret] = (pod, id)
            capabilities, hears = read_capabilities(participant, key), read_hears(participant, key)
            check_participant_limits(participant.limits, f"{key}.limits")
            check_room(participant.limits, pod_limits.get(pod, sections.limits), f"{key}.limits")
            settings.append(
                ParticipantSettings(
                    id,
                    capabilities,
                    participant.multiple,
                    hears,
                    person=participant.person,
                    limits=participant.limits,
                )
            )
        pods[pod] = tuple(settings)
    warnings += unsafe(sections, folder)
    gateway = sections.gateway
    if gateway.metrics_token is not None and digest(gateway.metrics_token) in tokens:
        raise BadKeyError("gateway.metrics_token", "is also the token of a participant")
    if gateway.tls_cert is not None and gateway.tls_key is not None:
        cert, key = str(folder / gateway.tls_cert), str(folder / gateway.tls_key)
        gateway = msgspec.structs.replace(gateway, tls_cert=cert, tls_key=key)
    log = msgspec.structs.replace(sections.log, path=str(folder / sections.log.path))
    files = ("credentials", "tls_ca", "tls_cert", "tls_key")
    given = {name: getattr(sections.cluster, name) for name in files}
    paths = {name: path and str(folder / path) for name, path in given.items()}
    cluster = msgspec.structs.replace(sections.cluster, **paths)
    own, admin = sections.tokens.path, sections.admin
    is_clustered = log.kind == "jetstream"
    has_token = any(getattr(admin, name) is not None for name in TOKEN_FORMS)
    admin_token = None
    if has_token:
        admin_token = token_digest(admin, "admin", environment, folder, warnings)
        if admin_token in tokens:
            raise BadKeyError("admin.token", "is also the token of a participant")
        if gateway.metrics_token is not None and admin_token == digest(gateway.metrics_token):
            raise BadKeyError("admin.token", "is also gateway.metrics_token")
    return Config(
        gateway,
        sections.limits,
        log,
        pods,
        tokens,
        tuple(warnings),
        cluster,
        tuple(_issuers(sections, pod_limits, folder)),
        None if own is None or is_clustered else str(folder / own),
        pod_limits,
        admin_token,
        admin.signed,
        own is not None and is_clustered,
    )


def _issuers(
    sections: Sections, pod_limits: Mapping[str, PodLimits], folder: Path
) -> Iterable[IssuerSettings]:
    for name, section in sections.issuers.items():
        yield read_issuer(name, section, folder)
        patterns = [compile_glob(pattern) for pattern in section.allow.pods]
        for pod in sections.pods:
            if any(matches(pod) for matches in patterns):
                limits = pod_limits.get(pod, sections.limits)
                check_room(section.allow.limits, limits, f"issuers.{name}.allow.limits")


def _pod_limits(defaults: PodLimits, stated: Mapping[str, Any], key: str) -> PodLimits:
    known = {name: getattr(defaults, name) for name in PodLimits.__struct_fields__}
    limits = _convert({**known, **stated}, PodLimits, key)
    check_limits(limits, key)
    return limits
