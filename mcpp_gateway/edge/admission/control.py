"""Admission: authentication and origin checks of HTTP requests, without sockets and clocks.

Tokens are compared as digests, never logged, and never read from the URL.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl

from mcpp.errors import FilterError
from mcpp.filters import Filter, everything, parse
from mcpp_gateway.config import Config, digest, is_token
from mcpp_gateway.edge.admission.admins import Admin
from mcpp_gateway.edge.admission.origins import Headers, Origins, is_loopback
from mcpp_gateway.edge.admission.proxies import Proxies
from mcpp_gateway.edge.admission.sign_in import Identity, Invitations, SessionTokens
from mcpp_gateway.edge.admission.throttle import Denial, Throttle
from mcpp_gateway.tokens.claims import MAX_TOKEN_LENGTH, Grant
from mcpp_gateway.tokens.verdicts import BadToken

if TYPE_CHECKING:
    from mcpp_gateway.core.pod import PodCore
    from mcpp_gateway.tokens.service import TokenService

SUBPROTOCOL: Final = "mcpp.v0.1"
CODE_HEADER: Final = "mcpp-code"
_BEARER_SUBPROTOCOL: Final = "mcpp.bearer."
_KEYS_MISSING: Final = "the keys of the token's issuer are not known yet; try again"
_NO_ROLE: Final = "this token has no role in the admin's interface"
_NOT_JOINED: Final = "join the pod first: what a signed token allows is in force then"
_NO_POD: Final = "this token is for no pod of this gateway"
_is_three_parts = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+").fullmatch


@dataclass(frozen=True, slots=True)
class Admission:
    """A participant is admitted: to which pod, with which filter, and from where in the log."""

    pod: str
    participant: str
    filter: Filter = everything
    after: str | None = None
    last: int | None = None
    until: float | None = None  # expiry of the token, if it has one
    grant: Grant | None = None  # of a signed token


@dataclass(frozen=True, slots=True)
class Waiting:
    """The keys of a token's issuer are being read; the request is decided on afterwards."""

    refresh: "asyncio.Future[bool]"
    is_final: bool  # whether an unknown key is a wrong one then, if they could be read
    is_guess: bool  # whether no known key has signed the token

    @property
    def has_settled(self) -> bool:
        """Whether the keys were read, and a key that is still unknown is a wrong one."""
        return self.is_final and self.refresh.done() and self.refresh.result()


@dataclass(frozen=True, slots=True)
class SignIn:
    """A browser is signed in: its identity, and its session token if it brought a code."""

    identity: Identity
    token: str | None = None


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who holds a token: of a signed one, the pods that it is for."""

    participant: str
    pods: tuple[str, ...]
    until: float | None = None
    grant: Grant | None = None

    def pod(self, wanted: str | None) -> str | Denial:
        """Return the pod that a request is about, by its `pod=` or by the token (S-06)."""
        if wanted is not None:
            return wanted if wanted in self.pods else Denial(403, "this token is not for that pod")
        if not self.pods:
            return Denial(403, _NO_POD)
        if len(self.pods) > 1:
            return Denial(400, f"this token is for several pods: add pod= ({', '.join(self.pods)})")
        return self.pods[0]


class AdmissionControl:
    """Decides which requests are admitted. Owns the invitations and the count of wrong tokens."""

    def __init__(
        self,
        config: Config,
        port: int,
        sessions: SessionTokens | None = None,
        tokens: "TokenService | None" = None,
        pods: "Mapping[str, PodCore] | None" = None,
    ) -> None:
        """`pods` tell whose a participant's name is; signed tokens need them."""
        self.invitations = Invitations()
        self.tokens = tokens
        self._sessions = sessions
        self._pods = pods or {}
        self._throttle = Throttle()
        self._port = port
        self.reconfigure(config)

    def reconfigure(self, config: Config) -> None:
        """Apply new tokens, origins and proxies; counted failures stay."""
        self._tokens = config.tokens
        self._secrets = {identity: secret for secret, identity in config.tokens.items()}
        self._metrics_token = config.gateway.metrics_token
        self._pod_names = frozenset(config.pods)
        self._admin_token = config.admin_token
        self._admin_signed = config.admin_signed
        self.check_origin = Origins(config, self._port).check
        self.client_address = Proxies(config.gateway.trusted_proxies).client_address

    def admit(
        self,
        query: str,
        headers: Headers,
        address: str,
        now: float,
        waited: Waiting | None = None,
    ) -> Admission | Denial | Waiting:
        """Decide on a request to join a pod; `waited` is what it has waited for."""
        denial = None if waited else self.check_sign_in(headers, address, now)
        holder = denial or self._authenticate(headers, address, now, waited)
        if not isinstance(holder, _Holder):
            return holder
        try:
            options = dict(_single(parse_qsl(query, keep_blank_values=True, max_num_fields=16)))
            pod = self._pod(holder, options.get("pod"))
            if isinstance(pod, Denial):
                return pod
            filter = parse(options["filter"]) if "filter" in options else everything
            last = _count(options["last"]) if "last" in options else None
        except FilterError as error:
            return Denial(400, f"filter: {error}")
        except ValueError as error:
            return Denial(400, str(error))
        return Admission(
            pod,
            holder.participant,
            filter,
            options.get("after"),
            last,
            holder.until,
            holder.grant,
        )

    def check_sign_in(self, headers: Headers, address: str, now: float) -> Denial | None:
        """Refuse a request whatever it brings: for its origin, or for what was guessed before."""
        return self.check_origin(headers) or self._throttle.refuse_unseen(address, now)

    def sign_in(
        self, headers: Headers, address: str, now: float, pod: str | None = None
    ) -> SignIn | Denial:
        """Sign a browser in by its code, in exchange for a session token, or by its token."""
        denial = self.check_sign_in(headers, address, now)
        if denial is not None:
            return denial
        match headers.get(CODE_HEADER, []):
            case [code]:
                identity = self.invitations.redeem(code, now)
                secret = None if identity is None else self._secrets.get(identity)
                if identity and secret and self._sessions:
                    return SignIn(identity, self._sessions.issue(identity, secret, now))
            case []:
                found = self._identify(headers, address, now, pod)
                return found if isinstance(found, Denial) else SignIn(found)
        return self._throttle.record_failure(address, now)

    def recognise(
        self,
        headers: Headers,
        address: str,
        now: float,
        pod: str | None = None,
        *,
        has_joined: bool = False,
    ) -> Identity | Denial:
        """Return the participant of a token: its own, a session's or a signed one.

        With `has_joined`, a signed one has to have joined: only then its rights are in force.
        """
        denial = self.check_sign_in(headers, address, now)
        return denial or self._identify(headers, address, now, pod, has_joined=has_joined)

    def recognise_owner(self, headers: Headers, address: str, now: float) -> Identity | Denial:
        """Return the owner of a participant's own token.

        A session token is refused: with invitations of its own, a session would never end.
        """
        denial = self.check_sign_in(headers, address, now)
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
        if is_loopback(address):
            return self.check_origin(headers)
        return Denial(401, "metrics need a request from loopback or metrics_token")

    @property
    def failures(self) -> Mapping[int, int]:
        """How many tokens were refused, by status."""
        return self._throttle.failures

    @property
    def has_admin(self) -> bool:
        """Whether the admin's interface is on."""
        return self._admin_token is not None or self._admin_signed

    def recognise_admin(self, headers: Headers, address: str, now: float) -> Admin | Denial:
        """Return whose token it is: the admin's own, or a signed one, also without the role."""
        denial = self.check_sign_in(headers, address, now)
        if denial is not None:
            return denial
        token = _token(headers)
        wanted = self._admin_token
        if token is not None and wanted is not None and compare_digest(digest(token), wanted):
            self._throttle.record_success(address)
            return Admin()
        if token is None or not self._admin_signed or digest(token) in self._tokens:
            return self._throttle.record_failure(address, now)
        holder = self._authenticate(headers, address, now)
        if isinstance(holder, Waiting):
            return self._refuse_for_now(holder.is_guess, 1.0, address, now)
        if isinstance(holder, Denial):
            return holder
        grant = holder.grant
        if grant is None:
            return Admin(holder.participant, refusal=_NO_ROLE)
        # None where the token may use its name.
        names = {pod: self._name_refusal(holder, grant, pod) for pod in holder.pods}
        pods = frozenset(pod for pod, refusal in names.items() if refusal is None)
        refusal = None
        if not grant.admin:
            refusal = _NO_ROLE
        elif not pods:
            refusal = next(iter(names.values()), None) or _NO_POD
        return Admin(
            holder.participant,
            token_id=grant.token_id,
            issuer=grant.issuer,
            pods=None if self._pod_names <= pods else pods,
            refusal=refusal,
        )

    def _identify(
        self,
        headers: Headers,
        address: str,
        now: float,
        pod: str | None,
        *,
        has_joined: bool = False,
    ) -> Identity | Denial:
        holder = self._authenticate(headers, address, now)
        if isinstance(holder, Waiting):
            return self._refuse_for_now(holder.is_guess, 1.0, address, now)
        if isinstance(holder, Denial):
            return holder
        found = self._pod(holder, pod)
        if isinstance(found, Denial):
            return found
        grant = holder.grant
        if has_joined and grant and not self._pods[found].members.has_joined_with(grant):
            return Denial(403, _NOT_JOINED)
        return found, holder.participant

    def _pod(self, holder: _Holder, wanted: str | None) -> str | Denial:
        """Return the pod that a request is about, if its holder may use its name there (S-04)."""
        found, grant = holder.pod(wanted), holder.grant
        if isinstance(found, Denial):
            return self._throttle.count(found)
        if grant is None:
            return found
        refusal = self._name_refusal(holder, grant, found)
        return found if refusal is None else self._throttle.count(Denial(403, refusal))

    def _name_refusal(self, holder: _Holder, grant: Grant, pod: str) -> str | None:
        """Return why a signed token may not use its name in a pod; None if it may (S-04)."""
        return self._pods[pod].members.grant_refusal(holder.participant, grant.issuer)

    def _authenticate(
        self, headers: Headers, address: str, now: float, waited: Waiting | None = None
    ) -> _Holder | Denial | Waiting:
        """Return who holds the token of a request, and count a wrong one."""
        token = _token(headers)
        found: _Holder | Denial | Waiting | None = None
        if token is not None:
            # Looked up by digest: the timing reveals nothing about a token.
            identity, until = self._tokens.get(digest(token)), None
            if identity is None and self._sessions is not None:
                session = self._sessions.recognise(token, self._secrets, now)
                identity, until = session or (None, None)
            if identity is not None:
                found = _Holder(identity[1], (identity[0],), until)
            elif self.tokens is not None and _is_signed(token):
                found = self._verify(self.tokens, token, waited, address, now)
        if found is None:
            return self._throttle.record_failure(address, now)
        if isinstance(found, _Holder):
            self._throttle.record_success(address)
        return found

    def _verify(
        self,
        tokens: "TokenService",
        token: str,
        waited: Waiting | None,
        address: str,
        now: float,
    ) -> _Holder | Denial | Waiting | None:
        """Return who holds a signed token; None for one that no issuer has signed."""
        verdict = tokens.verify(token, may_refresh=waited is None)
        if isinstance(verdict, Grant):
            until = verdict.until
            return _Holder(verdict.settings.id, verdict.pods, until, verdict)
        if isinstance(verdict, BadToken):
            # With a reason it was signed well: no guess, and its holder may want to know why.
            if verdict.reason is None:
                return None
            return self._throttle.count(Denial(401, verdict.reason))
        if verdict.refresh is not None:
            return Waiting(verdict.refresh, verdict.is_new, verdict.is_guess)
        if waited is not None and waited.has_settled:
            return None  # its issuer does not know the key either
        return self._refuse_for_now(verdict.is_guess, verdict.retry_seconds, address, now)

    def _refuse_for_now(
        self, is_guess: bool, retry_seconds: float, address: str, now: float
    ) -> Denial:
        """Answer a token that keys which are not known yet may have signed (S-08).

        One that was tried with known keys counts as a guess: else forged ones were free (S-13).
        """
        later = Denial(503, _KEYS_MISSING, retry_after_seconds=retry_seconds)
        if not is_guess:
            return self._throttle.count(later)
        denial = self._throttle.record_failure(address, now)
        if denial.status == 429:
            return denial
        return replace(later, delay_seconds=denial.delay_seconds)


def _token(headers: Headers) -> str | None:
    """Return the token of a request, if it has a well-formed one (G-02)."""
    token = _raw_token(headers)
    if token is None or is_token(token):
        return token
    return token if _is_signed(token) else None


def _is_signed(token: str) -> bool:
    """Return whether a token has the form of a signed one: three parts (G-04)."""
    return len(token) <= MAX_TOKEN_LENGTH and _is_three_parts(token) is not None


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
