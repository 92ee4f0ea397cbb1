"""The door: who may come in, decided from the HTTP upgrade alone. Pure: no socket, no clock.

Tokens are compared as digests, never logged, and never taken from the URL. A wrong one is answered
ever more slowly and then not at all, but a right one is always let in: whoever shares an address
with a guesser must not pay for it.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from mcpp.errors import FilterError
from mcpp.filters import Filter, everything, parse
from mcpp_gateway.config import Config, digest, is_token
from mcpp_gateway.edge.sign_in import Identity, Invitations, SessionTokens

SUBPROTOCOL: Final = "mcpp.v0.1"
CODE_HEADER: Final = "mcpp-code"
_BEARER_SUBPROTOCOL: Final = "mcpp.bearer."

_FREE_GUESSES: Final = 3
_MAX_GUESSES: Final = 10
_LONGEST_DELAY_SECONDS: Final = 4.0
_FORGIVEN_AFTER_SECONDS: Final = 60.0
_REMEMBERED_ADDRESSES: Final = 4096

Headers: TypeAlias = Mapping[str, list[str]]  # names in lower case


@dataclass(frozen=True, slots=True)
class Admission:
    """A participant may come in, and this is where its stream begins."""

    pod: str
    participant: str
    filter: Filter = everything
    after: str | None = None
    last: int | None = None
    until: float | None = None  # when the session ends, if it is one


@dataclass(frozen=True, slots=True)
class Denial:
    """An HTTP status and a sentence, to be sent after a delay."""

    status: int
    reason: str
    delay_seconds: float = 0.0
    retry_after_seconds: float | None = None


@dataclass(slots=True)
class Throttle:
    """Counts wrong tokens by address. Bounded: the addresses seen longest ago are forgotten."""

    _guesses: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)

    def count_guess(self, address: str, now: float) -> Denial:
        """Take note of a wrong token and return how it is answered."""
        key = _network(address)
        guesses, last = self._guesses.pop(key, (0, now))
        forgiven = int((now - last) / _FORGIVEN_AFTER_SECONDS)
        guesses = max(0, guesses - forgiven) + 1
        # Counted no further than needed, or a minute's wait would not be enough.
        self._guesses[key] = (min(guesses, _MAX_GUESSES), now)
        if len(self._guesses) > _REMEMBERED_ADDRESSES:
            self._guesses.popitem(last=False)
        if guesses > _MAX_GUESSES:
            return Denial(
                429,
                "too many wrong tokens from this address; wait a minute",
                retry_after_seconds=_FORGIVEN_AFTER_SECONDS,
            )
        slow = max(0, guesses - _FREE_GUESSES)
        delay = min(_LONGEST_DELAY_SECONDS, 0.125 * 2**slow) if slow else 0.0
        return Denial(401, "no such token", delay)


@dataclass(frozen=True, slots=True)
class SignIn:
    """Who a page may act as, and the token it was given in exchange for a code."""

    identity: Identity
    token: str | None = None


class AdmissionControl:
    """Judges requests to join. Owns the memory of wrong guesses, and the codes given out."""

    def __init__(self, config: Config, port: int, sessions: SessionTokens | None = None) -> None:
        self.invitations = Invitations()
        self._sessions = sessions
        self._throttle = Throttle()
        self._port = port
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Take new tokens and origins; the guesses stay counted."""
        self._tokens = config.tokens
        self._secrets = {identity: secret for secret, identity in config.tokens.items()}
        self._metrics_token = config.gateway.metrics_token
        scheme = "https" if config.gateway.tls_cert else "http"
        names = _own_names(config.gateway.host)
        own = {f"{scheme}://{name}:{self._port}" for name in names}
        if self._port == (443 if scheme == "https" else 80):
            own |= {f"{scheme}://{name}" for name in names}
        self._origins = own | set(config.gateway.allowed_origins)
        self._hosts = names | {_host_name(urlsplit(origin).netloc) for origin in self._origins}

    def check_origin(self, headers: Headers) -> Denial | None:
        """Refuse what a page of somebody else's could have sent (G-05)."""
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            return Denial(403, "this Host is not the gateway's; see allowed_origins")
        origins = headers.get("origin", [])
        if len(origins) > 1 or (origins and origins[0] not in self._origins):
            return Denial(403, "this Origin is not allowed; see allowed_origins")
        return None

    def admit(self, query: str, headers: Headers, address: str, now: float) -> Admission | Denial:
        """Judge a request to join."""
        denial = self.check_origin(headers)
        if denial is not None:
            return denial
        known = self._known(_token(headers), now)
        if known is None:
            return self._throttle.count_guess(address, now)
        (pod, participant), until = known
        try:
            options = dict(_single(parse_qsl(query, keep_blank_values=True, max_num_fields=16)))
            if options.get("pod", pod) != pod:
                return Denial(403, "this token is not for that pod")
            filter = parse(options["filter"]) if "filter" in options else everything
            last = _count(options["last"]) if "last" in options else None
        except FilterError as error:
            return Denial(400, f"filter: {error}")
        except ValueError as error:
            return Denial(400, str(error))
        return Admission(pod, participant, filter, options.get("after"), last, until)

    def sign_in(self, headers: Headers, address: str, now: float) -> SignIn | Denial:
        """Judge a page's request to sign in: exchange its code, or look at its token."""
        denial = self.check_origin(headers)
        if denial is not None:
            return denial
        match headers.get(CODE_HEADER, []):
            case [code]:
                identity = self.invitations.redeem(code, now)
                secret = None if identity is None else self._secrets.get(identity)
                if identity and secret and self._sessions:
                    return SignIn(identity, self._sessions.issue(identity, secret, now))
            case []:
                known = self._known(_token(headers), now)
                if known is not None:
                    return SignIn(known[0])
        return self._throttle.count_guess(address, now)

    def recognise_owner(self, headers: Headers, address: str, now: float) -> Identity | Denial:
        """Judge who asks for a link: a participant's own token, since a session would never end."""
        denial = self.check_origin(headers)
        if denial is not None:
            return denial
        token = _token(headers)
        identity = None if token is None else self._tokens.get(digest(token))
        return identity or self._throttle.count_guess(address, now)

    def check_metrics(self, headers: Headers, address: str, now: float) -> Denial | None:
        """Judge a request for the metrics: from this machine, or with the token for them."""
        token = _token(headers)
        if token is not None or "authorization" in headers:
            wanted = self._metrics_token
            if token and wanted and compare_digest(digest(token), digest(wanted)):
                return None
            return self._throttle.count_guess(address, now)
        if _is_loopback(address):
            return self.check_origin(headers)
        return Denial(401, "metrics are for this machine, or for whoever has metrics_token")

    def _known(self, token: str | None, now: float) -> tuple[Identity, float | None] | None:
        if token is None:
            return None
        # The look-up is by digest: its timing tells nothing about a token.
        identity = self._tokens.get(digest(token))
        if identity is not None:
            return identity, None
        if self._sessions is None:
            return None
        return self._sessions.recognise(token, self._secrets, now)

    def _is_own_host(self, host: str) -> bool:
        name = _host_name(host)
        # A page that rebinds its name to this address still sends its own name, never an address.
        return name in self._hosts or _is_address(name)


def _token(headers: Headers) -> str | None:
    """Return the token of a request, if there is one that could be right."""
    token = _stated_token(headers)
    return token if token is not None and is_token(token) else None


def _stated_token(headers: Headers) -> str | None:
    authorizations = headers.get("authorization", [])
    if authorizations:
        scheme, _, token = authorizations[0].partition(" ")
        return token.strip() if scheme.lower() == "bearer" and len(authorizations) == 1 else None
    offered = _offered_subprotocols(headers)
    match offered:
        case [first, second] if first == SUBPROTOCOL and second.startswith(_BEARER_SUBPROTOCOL):
            return second.removeprefix(_BEARER_SUBPROTOCOL)
    return None


def _offered_subprotocols(headers: Headers) -> list[str]:
    values = headers.get("sec-websocket-protocol", [])
    return [item.strip() for value in values for item in value.split(",") if item.strip()]


def _single(pairs: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    seen = set()
    for name, value in pairs:
        if name in seen:
            raise ValueError(f"{name[:40]!a} is there twice")
        seen.add(name)
        yield name, value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError("last must be a number of envelopes")
    return int(text)


def _own_names(host: str) -> set[str]:
    loopback = {"localhost", "127.0.0.1", "[::1]"}
    name = f"[{host}]" if ":" in host else host.lower()
    # Bound to every address, the gateway is on this machine's loopback too.
    everywhere = host in ("0.0.0.0", "::", "")
    return loopback | {name} if everywhere or _is_loopback(host) else {name}


def _host_name(netloc: str) -> str:
    if netloc.startswith("["):
        return netloc.partition("]")[0].lower() + "]"
    return netloc.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _network(address: str) -> str:
    """Return what counts as one guesser: an IPv4 address, or a /64, which one machine may hold."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))
