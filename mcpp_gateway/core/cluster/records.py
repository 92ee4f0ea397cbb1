"""What the log of a clustered pod holds: claims and batches, each with its version.

A `ClusterBatch` is a batch of outcomes, as in every journal, with two additions. `heard` says up to
which number the leader has decided on each gateway's commands, and `notes` are outcomes that are
not envelopes: answers to one session, and what happened to sessions. A note stands before the entry
with the number `place`, so that direct answers keep their position (G-30).

`applied` and `expected` say how far the leader had read the log when it sealed the batch, and which
index would have counted next there. That is true whether or not the batch itself counts. So a
reader that begins in the middle of the log, because its beginning was deleted, learns from the
first batches which records count.

Members that later versions add come last and have defaults, so that an older gateway can still
apply what a newer one has written; but it no longer claims the leadership (N-09).
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

from mcpp_gateway.core.records import (
    Batch,
    BatchHead,
    State,
    decode_batch,
    decode_batch_head,
    encode_batch,
    encode_state,
)

VERSION: Final = 1
# A sequence number that no log reaches. A claim that says it was applied shows a loss (N-14).
LOST: Final = 1 << 62

_BATCH: Final = 0
_CLAIM: Final = 1

# What a note says.
ANSWER: Final = 0  # a text for the session that sent a command
# The session is part of the pod from here on; `text` is what a signed token admits, if it has one.
JOINED: Final = 1
LEFT: Final = 2  # the session is not part of the pod any more
REPLACED: Final = 3  # the same, because its participant has a newer session (G-34)
# The participant is not configured where the pod is decided, or belongs to another issuer there.
DENIED: Final = 4
DROPPED: Final = 5  # a command of a session that is no longer part of the pod
REPEATED: Final = 7  # an envelope that is in the log already; `text` is its id (G-27)
GONE: Final = 6  # the gateway is gone, and its sessions with it
# The participant has a session that the gateway did not know of when it asked for this one: it asks
# again if the connection still exists.
OUTRUN: Final = 8


class Note(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One outcome that is not an envelope, for one gateway."""

    place: int  # the number of the entry in this batch that follows it
    event: int
    origin: str  # the gateway's incarnation
    number: int = 0  # of the command that it answers; 0: of none
    session: int = 0
    participant: str = ""
    text: bytes = b""


class ClusterBatch(msgspec.Struct, frozen=True, gc=False):
    """The outcomes of one tick of the leader."""

    batch: Batch
    heard: Mapping[str, int] = {}
    notes: Sequence[Note] = ()
    version: int = VERSION
    applied: int = 0  # the sequence number of the last record that the leader had applied
    expected: int = 0  # the index that counted next there


class Claim(msgspec.Struct, frozen=True, gc=False):
    """From here on this gateway decides. Its own claim, or that of a leader that hands over."""

    term: int
    gateway: str
    time: float
    epoch: str  # of the log, if this is its first record
    version: int = VERSION
    applied: int = 0  # the sequence number of the last record that its gateway had applied


class SessionState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A session of any gateway."""

    origin: str
    number: int
    participant: str
    index: int = 0  # of the batch with which it joined


class ClusterState(msgspec.Struct, frozen=True, array_like=True):
    """Everything that a gateway needs to go on from one record of the log."""

    version: int
    sequence: int  # of the last record that it includes
    window_sequence: int  # of the record that holds the first entry of the dedupe window
    leader: str | None
    state: State
    heard: dict[str, int] = {}
    sessions: tuple[SessionState, ...] = ()
    absent: dict[str, float] = {}  # since when participants are present without a session
    granted: dict[str, bytes] = {}  # what signed tokens admit, by participant


Record: TypeAlias = ClusterBatch | Claim


class _Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    version: int
    kind: int
    body: Raw
    heard: dict[str, int] = {}
    notes: tuple[Note, ...] = ()
    applied: int = 0
    expected: int = 0


class _Version(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What every version of a record begins with."""

    version: int


class _BareRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row without what only deciding needs."""

    version: int
    kind: int
    body: Raw
    heard: Raw = Raw()
    notes: Raw = Raw()
    applied: int = 0
    expected: int = 0


class BareBatch(NamedTuple):
    """A batch as a copy of the log keeps it: `payload` is the encoded `Batch`."""

    batch: BatchHead
    payload: bytes
    applied: int
    expected: int


class _ClaimRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    term: int
    gateway: str
    time: float
    epoch: str


_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(_Row).decode
_decode_version = msgspec.msgpack.Decoder(_Version).decode
_decode_bare_row = msgspec.msgpack.Decoder(_BareRow).decode
_decode_claim = msgspec.msgpack.Decoder(_ClaimRow).decode
_decode_state = msgspec.msgpack.Decoder(ClusterState).decode


def encode_record(record: Record) -> bytes:
    """Return a record as bytes."""
    if isinstance(record, Claim):
        body = (record.term, record.gateway, record.time, record.epoch)
        row = (record.version, _CLAIM, body)
        return _encode((*row, {}, (), record.applied) if record.applied else row)
    batch = Raw(encode_batch(record.batch))
    known = record.applied, record.expected
    return _encode((record.version, _BATCH, batch, record.heard, record.notes, *known))


def decode_record(data: bytes) -> Record | None:
    """Return the record that bytes hold; None for a kind that this version does not know.

    Raises msgspec.DecodeError.
    """
    row = _decode_row(data)
    if row.kind == _BATCH:
        batch = decode_batch(bytes(row.body))
        known = row.applied, row.expected
        return ClusterBatch(batch, row.heard, row.notes, row.version, *known)
    return _claim(row.body, row.version, row.applied) if row.kind == _CLAIM else None


def is_newer(data: bytes) -> bool:
    """Return whether bytes hold a record of a newer version, whatever follows that."""
    try:
        return _decode_version(data).version > VERSION
    except msgspec.DecodeError:
        return False


def decode_bare(data: bytes) -> BareBatch | Claim | None:
    """Return the same without decoding the entries: a copy of the log does not need them.

    Raises msgspec.DecodeError.
    """
    row = _decode_bare_row(data)
    if row.kind == _BATCH:
        payload = bytes(row.body)
        return BareBatch(decode_batch_head(payload), payload, row.applied, row.expected)
    return _claim(row.body, row.version, row.applied) if row.kind == _CLAIM else None


def shows_loss(sequence: int, record: Record | BareBatch) -> bool:
    """Return whether a record shows that the log has lost its end (N-14).

    Its gateway had applied a record that is not before it.
    """
    return record.applied >= sequence


def epoch_after_loss(epoch: str, sequence: int, record: bytes) -> str:
    """Return the epoch that a record which shows a loss begins, the same at every gateway.

    And another one for another record: a log can lose the same records twice.
    """
    return blake2b(f"{epoch} {sequence} ".encode() + record, digest_size=16).hexdigest()


def _claim(body: Raw, version: int, applied: int) -> Claim:
    claim = _decode_claim(body)
    return Claim(claim.term, claim.gateway, claim.time, claim.epoch, version, applied)


def encode_cluster_state(state: ClusterState) -> bytes:
    """Return a state as bytes."""
    rest = (state.heard, state.sessions, state.absent, state.granted)
    inner = Raw(encode_state(state.state))
    head = (state.version, state.sequence, state.window_sequence, state.leader)
    return _encode((*head, inner, *rest))


def decode_cluster_state(data: bytes) -> ClusterState:
    """Return the state that bytes hold. Raises msgspec.DecodeError."""
    return _decode_state(data)
