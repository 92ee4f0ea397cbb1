"""Signed tokens at a gateway: its issuers with their keys, and what was revoked."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mcpp_gateway.config import OWN_ISSUER, Config, ConfigError, IssuerSettings
from mcpp_gateway.core.joining.grants import GrantedSettings
from mcpp_gateway.tokens.claims import Grant, RightsReader, Template
from mcpp_gateway.tokens.fetching import fetch
from mcpp_gateway.tokens.key_cache import KeyCache, ReadKeys
from mcpp_gateway.tokens.keys import KeySetError, VerifyingKey, read_key_set, read_public_key
from mcpp_gateway.tokens.revocations import (
    Kind,
    NotStoredError,
    Revocation,
    Revocations,
    TokenFileError,
    TooManyRevocationsError,
)
from mcpp_gateway.tokens.saved_keys import SavedKeys
from mcpp_gateway.tokens.signing import (
    ISSUER_CLAIM,
    OWN_CLAIMS,
    IssuedToken,
    OwnTokens,
    Revoked,
    revoke_name,
)
from mcpp_gateway.tokens.store import TokenStore
from mcpp_gateway.tokens.verdicts import BadToken, Verdict
from mcpp_gateway.tokens.verification import Issuer, Issuers

logger = logging.getLogger("mcpp.gateway")

# The gateway's own tokens may grant everything: the command that signs them is the operator's.
_OWN_TEMPLATE = Template(multiple=True, person=True, admin=True)


class TokenService:
    """Verifies signed tokens. Owns the issuers' keys and the revocations."""

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
        *,
        shared: OwnTokens | None = None,
        before: "TokenService | None" = None,
    ) -> None:
        """Read the keys and what was revoked. Raises ConfigError if one of them cannot be read.

        Args:
            config: the configuration.
            loop: the event loop.
            clock: the time, which does not jump; for how long keys are used.
            wall_clock: Unix time, as in tokens.
            shared: what the gateways of a cluster have in common.
            before: the service of the configuration before, whose keys are used until the key
                servers have answered.
        """
        self.revocations = Revocations()
        self._loop = loop
        self._clock = clock
        self._wall_clock = wall_clock
        self._saved = SavedKeys(None if config.key_folder is None else Path(config.key_folder))
        self._fetched: dict[str, KeyCache] = {}
        earlier = {} if before is None else before._fetched
        self._known = {url: cache.known for url, cache in earlier.items()}
        folder = config.token_folder
        self._folder = None if folder is None else TokenStore(Path(folder))
        if self._folder is not None:
            self._folder.create()
        # Revocations of other issuers' tokens are shared, too.
        self._store: OwnTokens | None = self._folder or shared
        self._seen: object = None
        self._unreadable = ""  # why revocations could not be read when last tried
        self._issuers = list(self._issuers_of(config))
        if self._store is not None and config.has_own_tokens:
            self._issuers.append(self._own_issuer(self._store))
        self._keys = {issuer.name: issuer.keys for issuer in self._issuers}
        self._verification = Issuers(self._issuers, config.pods)
        self._read_revocations()
        self.learn()

    def reread(self, config: Config) -> None:
        """Apply new pods, and read key files again. Raises ConfigError."""
        for issuer, settings in zip(self._issuers, config.issuers, strict=False):
            if settings.keys_kind != "jwks_url":
                self._load(issuer.keys)
            else:
                issuer.keys.refresh_soon()
        self._verification = Issuers(self._issuers, config.pods)

    def verify(self, token: str, *, may_refresh: bool = True) -> Verdict:
        """Return what a token admits; a revoked one admits no participant."""
        now = self._wall_clock()
        verdict = self._verification.verify(token, now, may_refresh=may_refresh)
        if isinstance(verdict, Grant) and self.revocations.covers(verdict):
            return BadToken("the token was revoked")
        return verdict

    def revoke(self, name: str, *, may_be_unknown: bool, joined: Collection[Kind] = ()) -> Revoked:
        """Revoke a token by its id, or all tokens of a participant, until `store` in memory (S-10).

        For the arguments see `revoke_name`. Raises UnknownNameError and TooManyRevocationsError.
        """
        issued: Sequence[IssuedToken] = ()
        if self._folder is not None:
            # A damaged line may be about this name.
            may_be_unknown = may_be_unknown or not self._folder.is_issued_readable()
            try:
                issued = self._folder.issued()
            except TokenFileError as error:
                logger.error("issued tokens cannot be read", extra={"reason": str(error)})  # noqa: TRY400
        now = self._wall_clock()
        revoked = revoke_name(name, issued, now, may_be_unknown=may_be_unknown, joined=joined)
        self.revocations.revoke(revoked.revocations, now)
        return revoked

    def store(self) -> None:
        """Store all revocations in the folder, if there is one. Raises NotStoredError."""
        if self._folder is not None:
            try:
                self._folder.add_revocations(tuple(self.revocations), self._wall_clock())
            except (OSError, TokenFileError, TooManyRevocationsError) as error:
                raise NotStoredError(str(error)) from None

    def add(self, revocations: Iterable[Revocation]) -> bool:
        """Add revocations that another gateway knows. Return whether any is new."""
        return self.revocations.add(revocations, self._wall_clock())

    def learn(self) -> bool:
        """Read what has changed in the folder of own tokens. Return whether anything is revoked."""
        store = self._store
        if store is None:
            return False
        is_same = (changes := store.changes()) == self._seen
        if is_same and not self._unreadable:
            return False
        self._seen = changes
        is_new = self._learn_revocations(store)
        if is_same:
            return is_new
        own = self._keys.get(OWN_ISSUER)
        if own is not None:
            try:
                own.load()
            except (KeySetError, OSError) as error:  # those that were read before stay
                logger.error("keys cannot be read", extra={"reason": str(error)})  # noqa: TRY400
        return is_new

    def has_withdrawn_key(self, grant: GrantedSettings) -> bool:
        """Return whether the key that signed a token is not one of its issuer any more (S-14)."""
        keys = self._keys.get(grant.issuer)
        return keys is not None and grant.key is not None and keys.has_withdrawn(grant.key)

    def key_ages(self) -> Mapping[str, float]:
        """Return the age of each issuer's keys in seconds, of those that are read anew."""
        ages = {issuer: keys.age_seconds for issuer, keys in self._keys.items()}
        return {name: age for name, age in ages.items() if age is not None}

    def renew_keys(self) -> None:
        """Read keys anew where that is due; called about once a second."""
        for keys in self._keys.values():
            keys.renew()

    def _read_revocations(self) -> None:
        """Read what was revoked, or raise ConfigError: otherwise it would be admitted (S-10)."""
        if self._store is not None:
            try:
                self.add(self._store.revocations())
            except TokenFileError as error:
                raise ConfigError(f"tokens.path: {error}") from None

    def _learn_revocations(self, store: OwnTokens) -> bool:
        """Read what was revoked; what is known stays if it cannot be read. Return as `learn`."""
        try:
            is_new = self.add(store.revocations())
        except TokenFileError as error:
            if str(error) != self._unreadable:
                logger.error("revocations cannot be read", extra={"reason": str(error)})  # noqa: TRY400
            self._unreadable = str(error)
            return False
        if self._unreadable:
            logger.info("revocations can be read again")
        self._unreadable = ""
        return is_new

    def _load(self, keys: KeyCache) -> None:
        try:
            keys.load()
        except (KeySetError, OSError) as error:
            raise ConfigError(str(error)) from None

    def _issuers_of(self, config: Config) -> Iterator[Issuer]:
        for settings in config.issuers:
            if settings.keys_kind == "jwks_url":
                cache = self._fetching(settings)
            else:
                cache = self._reading(settings)
            yield Issuer(
                settings.issuer,
                settings.audience,
                cache,
                RightsReader(settings.name, _template(settings), settings.claims),
                settings.subject,
                settings.clock_skew_seconds,
            )

    def _fetching(self, settings: IssuerSettings) -> KeyCache:
        """Return the keys of a key server, as they were last known."""
        url = settings.keys

        def read() -> Sequence[VerifyingKey]:
            data = fetch(url)
            keys = read_key_set(data)
            self._saved.save(url, data, self._wall_clock())
            return keys

        cache = KeyCache(settings.name, read, self._loop, self._clock)
        known = self._known.get(url) or self._restored(url)
        if known is not None:
            cache.restore(*known)
        cache.refresh()  # not in place: the key server may take its time
        self._fetched[url] = cache
        return cache

    def _restored(self, url: str) -> tuple[Sequence[VerifyingKey], float] | None:
        """Return the saved keys of a key server, and when they were read by the steady clock."""
        now = self._wall_clock()
        saved = self._saved.load(url, now)
        return saved and (saved[0], self._clock() - (now - saved[1]))

    def _reading(self, settings: IssuerSettings) -> KeyCache:
        """Return the keys of a file. Raises ConfigError."""
        read, renews = _file_reader(settings), settings.keys_kind == "jwks_file"
        cache = KeyCache(settings.name, read, self._loop, self._clock, renews=renews)
        self._load(cache)
        return cache

    def _own_issuer(self, store: OwnTokens) -> Issuer:
        def read() -> Sequence[VerifyingKey]:
            return store.public_keys(cache.known[0])

        cache = KeyCache(OWN_ISSUER, read, self._loop, self._clock, renews=False)
        self._load(cache)
        rights = RightsReader(OWN_ISSUER, _OWN_TEMPLATE, OWN_CLAIMS)
        return Issuer(ISSUER_CLAIM, None, cache, rights, is_own=True)


def check_keys(config: Config) -> None:
    """Check the key files of a configuration; key servers are not asked. Raises ConfigError."""
    folder = config.token_folder
    if folder is not None and Path(folder).exists():  # otherwise it is created with a key
        try:
            TokenStore(Path(folder)).check()
        except (KeySetError, OSError, TokenFileError) as error:
            raise ConfigError(f"tokens.path: {error}") from None
    for settings in config.issuers:
        if settings.keys_kind != "jwks_url":
            try:
                _file_reader(settings)()
            except KeySetError as error:
                raise ConfigError(str(error)) from None


def check_issued(config: Config) -> None:
    """Check the list of issued tokens, without which a gateway can still start.

    Raises ConfigError.
    """
    if config.token_folder is not None:
        try:
            TokenStore(Path(config.token_folder)).check_issued()
        except TokenFileError as error:
            raise ConfigError(f"tokens.path: {error}") from None


def _template(settings: IssuerSettings) -> Template:
    allow = settings.allow
    return Template(
        pods=tuple(allow.pods),
        participants=tuple(allow.participants),
        capabilities=tuple(allow.capabilities),
        hears=settings.hears,
        limits=allow.limits,
        multiple=allow.multiple,
        person=allow.person,
        admin=allow.admin,
    )


def _file_reader(settings: IssuerSettings) -> ReadKeys:
    """Return how the keys of a file are read; a KeySetError names the issuer and the file."""
    parse = read_key_set if settings.keys_kind == "jwks_file" else read_public_key
    path = Path(settings.keys)

    def read() -> Sequence[VerifyingKey]:
        try:
            return parse(path.read_bytes())
        except (KeySetError, OSError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            where = f"issuers.{settings.name}.{settings.keys_kind}: {path}"
            raise KeySetError(f"{where}: {reason}") from None

    return read
