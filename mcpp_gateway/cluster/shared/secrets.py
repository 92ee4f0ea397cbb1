"""What gateways share to sign browsers in: the key of session tokens, and invitation codes.

A code is one message in a stream that forgets after two minutes, stored under its digest. The
gateway that redeems it puts an empty message in its place, on the condition that nothing else was
stored there meanwhile; so a code works once, whichever gateways it is shown to (G-61).
"""

import asyncio
from hashlib import sha256
from typing import Final

import msgspec

from mcpp_gateway.cluster.nats_link import LinkError, NatsLink
from mcpp_gateway.cluster.streams import Streams
from mcpp_gateway.edge.admission.sign_in import CODE_SECONDS, Identity

_NANOSECONDS: Final = 1_000_000_000
_SHARED: Final = "=shared"  # in the place of a pod's name, and none
_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_ATTEMPTS: Final = 10
_RETRY_SECONDS: Final = 0.03
# Codes that are not redeemed: bounded, as they are at a single gateway.
_MAX_CODES: Final = 4096

_encode_identity = msgspec.json.Encoder().encode
_decode_identity = msgspec.json.Decoder(tuple[str, str]).decode


class SharedSecrets:
    """The key and the codes of one cluster."""

    def __init__(self, link: NatsLink, streams: Streams) -> None:
        self._link = link
        self._streams = streams
        self._codes = f"{link.prefix.upper()}=CODES"

    async def open(self) -> None:
        """Create the stream of codes if there is none. Raises LinkError."""
        config = self._streams.config(
            self._codes,
            [f"{self._link.prefix}.{_SHARED}.code.*"],
            max_age=round(CODE_SECONDS * _NANOSECONDS),
            max_msgs=_MAX_CODES,
            max_msgs_per_subject=1,
        )
        await self._streams.ensure(config)

    async def key(self, candidate: bytes) -> bytes:
        """Return the key that the first gateway of the cluster stored. Raises LinkError."""
        subject = f"{self._link.prefix}.{_SHARED}.state.key"
        address = f"$JS.API.DIRECT.GET.{self._streams.state_stream}.{subject}"
        for _ in range(_ATTEMPTS):
            message = await self._link.request(address, b"")
            if not message.status:
                return message.data
            # Stored only if there is none: one of several gateways wins.
            await self._link.request(subject, candidate, headers={_EXPECTED: "0"})
            await asyncio.sleep(_RETRY_SECONDS)
        raise LinkError("the shared key cannot be stored")

    async def add_code(self, code: str, identity: Identity) -> None:
        """Let every gateway accept a code. Raises LinkError."""
        answer = await self._link.request(self._subject(code), _encode_identity(identity))
        if answer.status or "error" in msgspec.json.decode(answer.data):
            raise LinkError("the code cannot be stored")

    async def redeem_code(self, code: str) -> Identity | None:
        """Use a code up and return its participant; None if it is unknown, used or expired.

        Raises LinkError.
        """
        subject = self._subject(code)
        found = await self._streams.stored(self._codes, last_by_subj=subject)
        if found is None or not found[1]:
            return None
        sequence, data = found
        expected = {_EXPECTED: str(sequence)}
        answer = await self._link.request(subject, b"", headers=expected)
        if answer.status:
            raise LinkError(f"JetStream answered {answer.status}")
        return None if "error" in msgspec.json.decode(answer.data) else _decode_identity(data)

    def _subject(self, code: str) -> str:
        digest = sha256(code.encode(errors="surrogateescape")).hexdigest()
        return f"{self._link.prefix}.{_SHARED}.code.{digest}"
