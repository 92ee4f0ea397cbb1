"""The signed tokens of a cluster for `mcpp token`: every call connects and ends."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from mcpp_gateway.cluster.cluster_log import command_streams
from mcpp_gateway.cluster.shared.tokens import SharedTokens
from mcpp_gateway.config import Config, ConfigError
from mcpp_gateway.tokens.keys import KeySetError
from mcpp_gateway.tokens.revocations import Revocation
from mcpp_gateway.tokens.signing import IssuedToken, Revoked

T = TypeVar("T")


class ClusterTokens:
    """What `TokenStore` is for a folder. Holds no state."""

    def __init__(self, config: Config) -> None:
        self._config = config

    def add_key(self) -> str:
        """Create a signing key, which signs from now on, and return its id. Raises McppError."""
        return self._run(lambda tokens: tokens.add_key())

    def delete_key(self, id: str) -> None:
        """Delete a signing key; if it was the only one, create another. Raises McppError."""
        return self._run(lambda tokens: tokens.delete_key(id))

    def key_ids(self) -> list[str]:
        """Return the ids of the signing keys; the last one signs. Raises McppError."""
        return self._run(_key_ids)

    def sign(
        self,
        participant: str,
        pods: Sequence[str],
        rights: Mapping[str, Any],
        *,
        now: float,
        expires: float,
    ) -> str:
        """Issue a token and note that it was issued. Raises McppError."""
        return self._run(
            lambda tokens: tokens.sign(participant, pods, rights, now=now, expires=expires)
        )

    def revoke(self, name: str, now: float, *, may_be_unknown: bool = False) -> Revoked:
        """Revoke a token by its id, or all tokens of a participant. Raises McppError."""
        return self._run(lambda tokens: tokens.revoke(name, now, may_be_unknown=may_be_unknown))

    def issued(self) -> list[IssuedToken]:
        """Return the issued tokens, expired ones included for a while. Raises McppError."""
        return self._run(_issued)

    def revocations(self) -> list[Revocation]:
        """Return what was revoked. Raises McppError."""
        return self._run(_revocations)

    def _run(self, use: Callable[[SharedTokens], Awaitable[T]]) -> T:
        return asyncio.run(self._use(use))

    async def _use(self, use: Callable[[SharedTokens], Awaitable[T]]) -> T:
        async with command_streams(self._config, "tokens") as streams:
            tokens = SharedTokens(streams.link, streams)
            try:
                await tokens.open(with_key=True)
                return await use(tokens)
            except KeySetError as error:
                raise ConfigError(f"no signing key: {error}") from None


async def _issued(tokens: SharedTokens) -> list[IssuedToken]:
    return tokens.issued()


async def _key_ids(tokens: SharedTokens) -> list[str]:
    return tokens.key_ids()


async def _revocations(tokens: SharedTokens) -> list[Revocation]:
    return tokens.revocations()
