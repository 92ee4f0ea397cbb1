"""What gateways tell each other beside the log. Everything here may be lost, repeated or late."""

from collections.abc import Sequence
from typing import Final

import msgspec

# What a command asks for.
SEND: Final = 0
JOIN: Final = 1
LEAVE: Final = 2
STOP: Final = 3  # the gateway stops: it is gone, but its participants may come back elsewhere
NOTHING: Final = 4  # in the place of a command that is no longer wanted


class Command(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a gateway asks the leader to decide on, numbered in its order."""

    number: int
    event: int
    session: int
    participant: str = ""
    text: bytes = b""
    seen: int = 0  # of a join: the index of the batch that its gateway expected next
    grant: bytes = b""  # of a join with a signed token: what that admits


class Forward(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive commands of one incarnation of a gateway, for the leader."""

    origin: str
    commands: Sequence[Command]


class RelayedParts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Live parts that the sessions of a gateway sent in one tick, for all other gateways."""

    gateway: str
    texts: Sequence[bytes]


class PodBeat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the leader of a pod says about it: how far its log is, to notice what is missing."""

    term: int
    sequence: int


class Beat(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sign of life of a gateway, with the pods that it leads."""

    gateway: str
    leads: dict[str, PodBeat] = {}
    stopping: bool = False
    address: str = ""
    sessions: int = 0
    lag: int = 0  # records that it has not applied yet
    reachable: bool = True  # whether its logs can be reached
    outdated: bool = False  # a log holds records of a newer version: it does not lead (N-09)


encode = msgspec.msgpack.Encoder().encode
decode_forward = msgspec.msgpack.Decoder(Forward).decode
decode_live = msgspec.msgpack.Decoder(RelayedParts).decode
decode_beat = msgspec.msgpack.Decoder(Beat).decode
