"""Signed tokens of a cluster: keys, the list of issued tokens, and revocations, in one message.

All gateways read it, and a command or a gateway replaces it, on the condition that no other has
done so meanwhile. The servers publish it again when it is stored, so gateways have it at once; one
that missed it asks every second whether there is a newer one.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from mcpp_gateway.cluster.nats_link import LinkError, NatsLink, NatsMessage
from mcpp_gateway.cluster.streams import Streams
from mcpp_gateway.tokens.keys import VerifyingKey
from mcpp_gateway.tokens.revocations import Kind, Revocation, Revocations
from mcpp_gateway.tokens.signing import (
    IssuedToken,
    Revoked,
    SigningKey,
    check_key_id,
    new_token,
    revoke_name,
)

logger = logging.getLogger("mcpp.gateway")

T = TypeVar("T")

_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_ATTEMPTS: Final = 20
_RETRY_SECONDS: Final = 0.05
_POLL_SECONDS: Final = 1.0
_MAX_BYTES: Final = 4 << 20
_SIGNED_SHARE: Final = 0.5  # about 20,000 tokens; the rest is for revoking them
_SPARE_BYTES: Final = 1024  # of a message, for what is not its text


class _Document(msgspec.Struct):
    keys: list[SigningKey] = []  # the last one signs
    issued: list[IssuedToken] = []
    revoked: list[Revocation] = []


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Document).decode


class SharedTokens:
    """The signed tokens of one cluster, as they were last read. Owns the task that reads them."""

    def __init__(self, link: NatsLink, streams: Streams) -> None:
        self.on_change: Callable[[], None] = lambda: None
        self._link = link
        self._streams = streams
        self._stream = f"{link.prefix.upper()}=TOKENS"
        self._subject = f"{link.prefix}.=shared.tokens"
        self._republished = f"{link.prefix}.=shared.tokens-out"
        self._document = _Document()
        self._sequence = 0
        self._follower: asyncio.Task[None] | None = None

    async def open(self, *, with_key: bool) -> None:
        """Create the stream if there is none, and a key if one is wanted. Raises LinkError."""
        config = self._streams.config(
            self._stream,
            [self._subject],
            max_msgs_per_subject=1,
            republish={"src": self._subject, "dest": self._republished},
        )
        await self._streams.ensure(config)
        await self.refresh()
        if with_key and not self._document.keys:
            await self._update(_add_first_key)

    async def follow(self) -> None:
        """Keep up with changes from now on."""
        if self._follower is None:
            await self._link.subscribe(self._republished, self._receive)
            self._follower = asyncio.create_task(self._poll())

    def close(self) -> None:
        """Stop following."""
        if self._follower is not None:
            self._follower.cancel()

    async def refresh(self) -> None:
        """Read the tokens if they have changed. Raises LinkError."""
        found = await self._streams.info(self._stream)
        if found is not None and int(found["state"]["last_seq"]) != self._sequence:
            stored = await self._streams.stored(self._stream, last_by_subj=self._subject)
            if stored is not None:
                self._take(*stored)

    # --- what was read --------------------------------------------------------------------------

    def public_keys(self, known: Sequence[VerifyingKey] = ()) -> Sequence[VerifyingKey]:
        """Return the keys that verify own tokens. Raises KeySetError."""
        return tuple(key.verifying() for key in self._document.keys)

    def issued(self) -> list[IssuedToken]:
        """Return the issued tokens, expired ones included for a while."""
        return self._document.issued

    def revocations(self) -> list[Revocation]:
        """Return what was revoked."""
        return self._document.revoked

    def changes(self) -> object:
        """Return a value that differs if keys or revocations have changed."""
        return self._sequence

    # --- changes --------------------------------------------------------------------------------

    async def add_key(self) -> str:
        """Create a signing key, which signs from now on, and return its id. Raises LinkError."""
        key = SigningKey.new()
        await self._update(lambda document: document.keys.append(key))
        return key.id

    async def delete_key(self, id: str) -> None:
        """Delete a signing key; if it was the only one, create another.

        Raises LinkError and ConfigError.
        """

        def delete(document: _Document) -> None:
            check_key_id(id, [key.id for key in document.keys])
            document.keys = [key for key in document.keys if key.id != id]
            _add_first_key(document)

        await self._update(delete)

    def key_ids(self) -> list[str]:
        """Return the ids of the signing keys; the last one signs."""
        return [key.id for key in self._document.keys]

    async def sign(
        self,
        participant: str,
        pods: Sequence[str],
        rights: Mapping[str, Any],
        *,
        now: float,
        expires: float,
    ) -> str:
        """Issue a token and note that it was issued.

        Raises LinkError, KeySetError and ConfigError.
        """

        def add(document: _Document) -> str:
            key = document.keys[-1]
            issued = new_token(participant, pods, now, expires, key.id)
            document.issued = [each for each in document.issued if each.expires > now]
            document.issued.append(issued)
            return key.sign(issued, rights)

        return await self._update(add, share=_SIGNED_SHARE)

    async def revoke(
        self,
        name: str,
        now: float,
        *,
        may_be_unknown: bool = False,
        joined: Collection[Kind] = (),
    ) -> Revoked:
        """Revoke a token by its id, or all tokens of a participant; see `revoke_name`.

        Raises LinkError, UnknownNameError and TooManyRevocationsError.
        """

        def add(document: _Document) -> Revoked:
            revoked = revoke_name(
                name, document.issued, now, may_be_unknown=may_be_unknown, joined=joined
            )
            known = Revocations()
            known.add(document.revoked, now)
            known.revoke(revoked.revocations, now)
            document.revoked = list(known)
            return revoked

        return await self._update(add)

    # --- private --------------------------------------------------------------------------------

    async def _update(self, change: Callable[[_Document], T], *, share: float = 1.0) -> T:
        """Change the tokens, again if another process has changed them meanwhile.

        They may take a share of what one message can hold.
        """
        most = share * (min(_MAX_BYTES, self._link.max_payload) - _SPARE_BYTES)
        for _ in range(_ATTEMPTS):
            stored = await self._streams.stored(self._stream, last_by_subj=self._subject)
            sequence, data = stored or (0, _encode(_Document()))
            document = _decode(data)
            result = change(document)
            encoded = _encode(document)
            if len(encoded) > most:
                raise LinkError("too many signed tokens; some have to expire first")
            headers = {_EXPECTED: str(sequence)}
            answer = await self._link.request(self._subject, encoded, headers=headers)
            if not answer.status:
                known = msgspec.json.decode(answer.data)
                if "error" not in known:
                    self._take(int(known["seq"]), encoded)
                    return result
            await asyncio.sleep(_RETRY_SECONDS)
        raise LinkError("the cluster's tokens cannot be stored")

    def _receive(self, message: NatsMessage) -> None:
        self._take(int(message.headers["Nats-Sequence"]), message.data)

    def _take(self, sequence: int, data: bytes) -> None:
        if sequence <= self._sequence:
            return
        try:
            self._document = _decode(data)
        except msgspec.DecodeError as error:
            facts = {"reason": str(error)}
            logger.error("the cluster's tokens cannot be read", extra=facts)  # noqa: TRY400
            return
        self._sequence = sequence
        self.on_change()

    async def _poll(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                await self.refresh()
            except LinkError as error:
                logger.debug("the cluster's tokens cannot be read", extra={"reason": str(error)})


def _add_first_key(document: _Document) -> None:
    if not document.keys:
        document.keys.append(SigningKey.new())
