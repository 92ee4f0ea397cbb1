"""The sections of the configuration file as they are written."""

from typing import Any, Literal

import msgspec

from mcpp_gateway.core.limits import ParticipantLimits, PodLimits


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file; unknown keys are mistakes."""


class GatewaySection(Section, frozen=True):
    """The section `[gateway]`: where and how to listen."""

    host: str = "127.0.0.1"
    port: int = 8787
    allowed_origins: list[str] = []
    trusted_proxies: list[str] = []  # addresses and networks (G-88)
    tls_cert: str | None = None
    tls_key: str | None = None
    log_format: Literal["text", "json"] = "text"
    ping_seconds: float = 20.0
    handshake_seconds: float = 10.0
    drain_seconds: float = 8.0
    metrics_token: str | None = None
    max_outbox_bytes: int = 268_435_456  # unsent data of all pods together
    mcp: bool = True  # whether MCP clients are served at /mcp


class RetentionSection(Section, frozen=True):
    """The section `[log.retention]`: how much of each pod's log is kept. 0 is no limit."""

    max_age_days: float = 0.0
    max_bytes: int = 0


class LogSection(Section, frozen=True):
    """The section `[log]`: where the pods' logs are kept."""

    kind: Literal["memory", "file", "jetstream"] = "memory"
    path: str = "data"
    fsync: Literal["always", "interval"] = "always"
    interval_ms: float = 100.0
    rejoin_seconds: float = 30.0
    segment_bytes: int = 67_108_864
    reserve_bytes: int = 16_777_216
    retention: RetentionSection = RetentionSection()


class ClusterSection(Section, frozen=True):
    """The section `[cluster]`: the NATS servers that keep the logs of all gateways."""

    servers: list[str] = []
    name: str = "mcpp"  # begins the names of subjects and streams
    replicas: int = 3
    unreachable_seconds: float = 15.0  # without an answer of the log, until clients are closed
    credentials: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @property
    def shown_servers(self) -> str:
        """The addresses of the servers for people, without users and passwords."""
        return ", ".join(without_user(each) for each in self.servers)


def without_user(address: str) -> str:
    """Return an address without its user and password, also one whose scheme was forgotten."""
    user, _, host = address.rpartition("@")
    scheme, *rest = user.split("://")
    return f"{scheme}://{host}" if rest and scheme.isalpha() else host


class ParticipantSection(Section, frozen=True):
    """A participant: its token in exactly one of four forms (G-46), and its rights."""

    token: str | None = None
    token_sha256: str | None = None
    token_file: str | None = None
    token_env: str | None = None
    capabilities: list[dict[str, Any]] = []
    multiple: bool = False
    hears: dict[str, Any] | None = None
    person: bool = False  # whose chats end a loop of agents (G-84)
    limits: ParticipantLimits = ParticipantLimits()


class PodSection(Section, frozen=True):
    """A pod: its participants, and its limits in place of the general ones."""

    participants: dict[str, ParticipantSection] = {}
    limits: dict[str, Any] = {}


class AllowSection(Section, frozen=True):
    """The table `allow` of an issuer: what its tokens may grant at most (S-05)."""

    pods: tuple[str, ...] = ("*",)
    participants: tuple[str, ...] = ("*",)
    capabilities: tuple[dict[str, Any], ...] = ({"kind": "*"},)
    hears: dict[str, Any] | None = None
    limits: ParticipantLimits = ParticipantLimits()
    multiple: bool = False
    person: bool = False
    admin: bool = False


class IssuerSection(Section, frozen=True):
    """The section `[issuers.NAME]`: whose signed tokens are accepted, and for what."""

    audience: str
    jwks_url: str | None = None
    jwks_file: str | None = None
    public_key: str | None = None  # a file in PEM format
    issuer: str | None = None  # the claim `iss`
    claims: str = "mcpp"  # the claim that holds capabilities, hears, limits, multiple and person
    subject: str = "sub"  # the claim that names the participant
    clock_skew_seconds: float = 30.0
    allow: AllowSection = AllowSection()


class AdminSection(Section, frozen=True):
    """The section `[admin]`: which tokens open the admin's interface. None: it is off."""

    token: str | None = None
    token_sha256: str | None = None
    token_file: str | None = None
    token_env: str | None = None
    signed: bool = False  # signed tokens with the role `admin`


class TokensSection(Section, frozen=True):
    """The section `[tokens]`: the folder of the gateway's own signed tokens."""

    path: str | None = None


class Sections(Section, frozen=True):
    """The configuration file as it is written."""

    gateway: GatewaySection = GatewaySection()
    limits: PodLimits = PodLimits()
    log: LogSection = LogSection()
    cluster: ClusterSection = ClusterSection()
    tokens: TokensSection = TokensSection()
    admin: AdminSection = AdminSection()
    issuers: dict[str, IssuerSection] = {}
    pods: dict[str, PodSection] = {}
