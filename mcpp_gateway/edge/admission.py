"""Admission: authentication and origin checks of HTTP requests, without sockets and clocks.

Tokens are compared as digests, never logged, and never read from the URL. Wrong tokens from one
address are answered more and more slowly, then with 429; from then on only some of the tokens from
there are looked at at all, and only some of all tokens while many are wrong.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from mcpp.errors import FilterError
from mcpp.filters import Filter, everything, parse
from mcpp_gateway.config import Config, digest, is_token
from mcpp_gateway.core.rates import Bucket, Rate
from mcpp_gateway.edge.sign_in import Identity, Invitations, SessionTokens

SUBPROTOCOL: Final = "mcpp.v0.1"
CODE_HEADER: Final = "mcpp-code"
_BEARER_SUBPROTOCOL: Final = "mcpp.bearer."

_FREE_FAILURES: Final = 3
_MAX_FAILURES: Final = 10
_MAX_DELAY_SECONDS: Final = 4.0
_FORGET_SECONDS: Final = 60.0
_MAX_ADDRESSES: Final = 4096
# Tokens that are looked at from an address with many wrong ones. So many that others behind the
# same address get in when they try again, and so few that guessing takes for ever.
_LOOKS_PER_ADDRESS: Final = Rate.per_second(5, 10)
# Wrong tokens in all. Above that, only addresses from which a right one has come are looked at.
_WRONG_IN_ALL: Final = Rate.per_second(100, 500)
_UNSEEN_SECONDS: Final = 1.0

Headers: TypeAlias = Mapping[str, list[str]]  # names in lower case


@dataclass(frozen=True, slots=True)
class Admission:
    """A participant is admitted: to which pod, with which filter, and from where in the log."""

    pod: str
    participant: str
    filter: Filter = everything
    after: str | None = None
    last: int | None = None
    until: float | None = None  # expiry of the session token, if it is one


@dataclass(frozen=True, slots=True)
class Denial:
    """A request is refused: HTTP status and reason, to be sent after a delay."""

    status: int
    reason: str
    delay_seconds: float = 0.0
    retry_after_seconds: float | None = None


class _Guesser:
    """An address with wrong tokens."""

    __slots__ = ("failures", "last", "looks")

    def __init__(self, now: float) -> None:
        self.failures = 0
        self.last = now
        self.looks = Bucket(_LOOKS_PER_ADDRESS)


class Throttle:
    """Counts wrong tokens per address and in all, for a bounded number of addresses (G-06)."""

    def __init__(self) -> None:
        self._guessers: OrderedDict[str, _Guesser] = OrderedDict()
        self._trusted: OrderedDict[str, None] = OrderedDict()
        self._wrong = Bucket(_WRONG_IN_ALL)

    def refuse_unseen(self, address: str, now: float) -> Denial | None:
        """Refuse to look at a token if too many from there, or in all, were wrong."""
        key = _network(address)
        guesser = self._guessers.get(key)
        wait = 0.0
        if guesser is not None and guesser.failures >= _MAX_FAILURES:
            _forget(guesser, now)
            if guesser.failures >= _MAX_FAILURES:
                wait = guesser.looks.take(now)
        if not wait and key not in self._trusted and self._wrong.wait(now):
            wait = _UNSEEN_SECONDS
        if not wait:
            return None
        reason = "too many wrong tokens; try again"
        return Denial(429, reason, retry_after_seconds=max(_UNSEEN_SECONDS, wait))

    def record_success(self, address: str) -> None:
        """Remember an address from which a right token came."""
        key = _network(address)
        self._trusted[key] = None
        self._trusted.move_to_end(key)
        if len(self._trusted) > _MAX_ADDRESSES:
            self._trusted.popitem(last=False)

    def record_failure(self, address: str, now: float) -> Denial:
        """Count a wrong token and return how to answer it."""
        key = _network(address)
        self._wrong.charge(1, now)
        guesser = self._guessers.pop(key, None) or _Guesser(now)
        self._guessers[key] = guesser
        if len(self._guessers) > _MAX_ADDRESSES:
            self._guessers.popitem(last=False)
        _forget(guesser, now)
        failures = guesser.failures + 1
        # Stored up to the maximum only, or a minute's wait would not be enough.
        guesser.failures, guesser.last = min(failures, _MAX_FAILURES), now
        if failures > _MAX_FAILURES:
            return Denial(
                429,
                "too many wrong tokens from this address; wait a minute",
                retry_after_seconds=_FORGET_SECONDS,
            )
        slow = max(0, failures - _FREE_FAILURES)
        delay = min(_MAX_DELAY_SECONDS, 0.125 * 2**slow) if slow else 0.0
        return Denial(401, "unknown or missing token", delay)


def _forget(guesser: _Guesser, now: float) -> None:
    """Forget one wrong token for each minute without one."""
    forgotten = int((now - guesser.last) / _FORGET_SECONDS)
    if forgotten:
        guesser.failures = max(0, guesser.failures - forgotten)
        guesser.last += forgotten * _FORGET_SECONDS


@dataclass(frozen=True, slots=True)
class SignIn:
    """A browser is signed in: its identity, and its session token if it brought a code."""

    identity: Identity
    token: str | None = None


class AdmissionControl:
    """Decides which requests are admitted. Owns the invitations and the count of wrong tokens."""

    def __init__(self, config: Config, port: int, sessions: SessionTokens | None = None) -> None:
        self.invitations = Invitations()
        self._sessions = sessions
        self._throttle = Throttle()
        self._port = port
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Apply new tokens and origins; counted failures stay."""
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
        """Refuse a request that a foreign web page could have caused (G-05)."""
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            return Denial(403, "this Host is not allowed; see allowed_origins")
        origins = headers.get("origin", [])
        if len(origins) > 1 or (origins and origins[0] not in self._origins):
            return Denial(403, "this Origin is not allowed; see allowed_origins")
        return None

    def admit(self, query: str, headers: Headers, address: str, now: float) -> Admission | Denial:
        """Decide on a request to join a pod."""
        denial = self.check_origin(headers) or self._throttle.refuse_unseen(address, now)
        if denial is not None:
            return denial
        known = self._authenticate(_token(headers), now)
        if known is None:
            return self._throttle.record_failure(address, now)
        self._throttle.record_success(address)
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
        """Sign a browser in by its code, in exchange for a session token, or by its token."""
        denial = self.check_origin(headers) or self._throttle.refuse_unseen(address, now)
        if denial is not None:
            return denial
        match headers.get(CODE_HEADER, []):
            case [code]:
                identity = self.invitations.redeem(code, now)
                secret = None if identity is None else self._secrets.get(identity)
                if identity and secret and self._sessions:
                    return SignIn(identity, self._sessions.issue(identity, secret, now))
            case []:
                known = self._authenticate(_token(headers), now)
                if known is not None:
                    return SignIn(known[0])
        return self._throttle.record_failure(address, now)

    def recognise(self, headers: Headers, address: str, now: float) -> Identity | Denial:
        """Return the participant of a token, its own or a session's."""
        denial = self.check_origin(headers)
        if denial is not None:
            return denial
        known = self._authenticate(_token(headers), now)
        return self._throttle.record_failure(address, now) if known is None else known[0]

    def recognise_owner(self, headers: Headers, address: str, now: float) -> Identity | Denial:
        """Return the owner of a participant's own token.

        A session token is refused: with invitations of its own, a session would never end.
        """
        denial = self.check_origin(headers) or self._throttle.refuse_unseen(address, now)
        if denial is not None:
            return denial
        token = _token(headers)
        identity = None if token is None else self._tokens.get(digest(token))
        return identity or self._throttle.record_failure(address, now)

    def check_metrics(self, headers: Headers, address: str, now: float) -> Denial | None:
        """Allow metrics for requests from loopback, or with the metrics token (G-44)."""
        token = _token(headers)
        if token is not None or "authorization" in headers:
            denial = self._throttle.refuse_unseen(address, now)
            if denial is not None:
                return denial
            wanted = self._metrics_token
            if token and wanted and compare_digest(digest(token), digest(wanted)):
                return None
            return self._throttle.record_failure(address, now)
        if _is_loopback(address):
            return self.check_origin(headers)
        return Denial(401, "metrics need a request from loopback or metrics_token")

    def _authenticate(self, token: str | None, now: float) -> tuple[Identity, float | None] | None:
        if token is None:
            return None
        # Looked up by digest: the timing reveals nothing about a token.
        identity = self._tokens.get(digest(token))
        if identity is not None:
            return identity, None
        if self._sessions is None:
            return None
        return self._sessions.recognise(token, self._secrets, now)

    def _is_own_host(self, host: str) -> bool:
        name = _host_name(host)
        # A page that rebinds its name to this address sends that name, never an IP address.
        return name in self._hosts or _is_address(name)


def _token(headers: Headers) -> str | None:
    """Return the token of a request, if it has a well-formed one (G-02)."""
    token = _raw_token(headers)
    return token if token is not None and is_token(token) else None


def _raw_token(headers: Headers) -> str | None:
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
            raise ValueError(f"{name[:40]!a} is given twice")
        seen.add(name)
        yield name, value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise ValueError("last must be a number of envelopes")
    return int(text)


def _own_names(host: str) -> set[str]:
    loopback = {"localhost", "127.0.0.1", "[::1]"}
    name = f"[{host}]" if ":" in host else host.lower()
    # A gateway that listens on all addresses listens on loopback too.
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
    """Return the key of an address: itself, or its /64 for IPv6, which one machine may hold."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if parsed.version == 4:
        return address
    return str(ipaddress.ip_network((parsed, 64), strict=False))
