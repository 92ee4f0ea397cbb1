"""What a journal holds: the outcomes of decisions, never the messages that asked for them.

A restart, a newer version or a lowered limit therefore never decides on an accepted envelope again.
A `Batch` is what one tick of the gateway accepted; a `State` is everything that deciding needs, as
of one position, so that recovery reads one state and the batches after it.

Both are MessagePack arrays: members that later versions add come last and have defaults.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeAlias

import msgspec

from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import GATEWAY

# G-47: longer lists of recipients are searched as sets.
SHORT_LIST: Final = 8
# In `LogEntry.contexts`: the type of a context of which the log holds nothing but what is below it.
UNKNOWN_TYPE: Final = ""
_ContextRow: TypeAlias = tuple[str, str | None, tuple[str, ...]]  # id, type, ancestors
_ENCODED_AT_ONCE: Final = 500  # a fraction of a millisecond


class OwnerState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The issuer whose token named a participant, and when the last such token expires (S-04)."""

    participant: str
    issuer: str
    until: float


# gc=False: entries hold no cycles, and a hundred thousand of them need not be visited.
class LogEntry(msgspec.Struct, frozen=True, gc=False):
    """An envelope as the log keeps it: the sender's own text, and what filters ask about."""

    id: str
    sender: str
    to: tuple[str, ...] | frozenset[str] | None
    kind: str
    lineage: Lineage | None
    text: bytes
    # What an envelope of the gateway names, in its order: the participants of a presence, none of
    # which receives its own, and the contexts of a `system/context` or a `system/erased`, as they
    # were.
    about: tuple[str, ...] = ()
    contexts: tuple[Lineage, ...] = ()
    time: float = 0.0  # of receipt; in files it is that of the batch
    erased: bool = False  # the text is a tombstone
    # The card that a `system/update` announces, which is not sent with it. Such an entry has an
    # empty `to`, so that the bounds by bytes count the card, too.
    card: bytes = b""
    attachments: tuple[str, ...] = ()  # the hashes of the blobs that the envelope names
    private: tuple[str, ...] = ()  # those of them that are only for its addressees
    owners: tuple[OwnerState, ...] = ()  # of the participants of a presence with signed tokens

    @property
    def public_attachments(self) -> tuple[str, ...]:
        """The hashes of the blobs that the envelope names for all that hear it."""
        return tuple([hash for hash in self.attachments if hash not in self.private])


class Batch(msgspec.Struct, frozen=True, gc=False):
    """The entries of one tick, in their order. `position` is that of the first."""

    term: int  # of the gateway that decided; it grows with every start
    index: int  # the number of the batch in the log
    position: int
    time: float
    entries: Sequence[LogEntry]


class BatchHead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A batch whose entries are not decoded."""

    term: int
    index: int
    position: int
    time: float
    entries: list[msgspec.Raw]


class LiveState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A live context, with what its expiry depends on."""

    id: str
    type: str | None
    parent: str | None
    creator: str | None  # None: a placeholder, in which nothing was said yet
    messages: int
    participants: tuple[str, ...]
    started: float
    last: float
    holder: str | None
    holder_last: float
    heirs: tuple[tuple[str, float], ...]


class DormantState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An expired context that can be revived."""

    id: str
    type: str | None
    parent: str | None
    creator: str | None
    messages: int
    started: float


class CardState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A participant's card."""

    participant: str
    text: bytes


class GrantState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Equal namings of a blob: what filters ask about, and the first and last of them."""

    sender: str
    to: tuple[str, ...] | None
    kind: str
    context: _ContextRow | None
    first: int
    last: int
    time: float  # of the last

    @classmethod
    def of(cls, entry: LogEntry, first: int, last: int, time: float) -> "GrantState":
        """Return the namings by entries like this one."""
        lineage = entry.lineage
        context = None if lineage is None else (lineage.id, lineage.type, lineage.ancestors)
        to = None if entry.to is None else tuple(entry.to)
        return cls(entry.sender, to, entry.kind, context, first, last, time)

    def entry(self) -> LogEntry:
        """Return an entry for filters, without id and text."""
        lineage = None if self.context is None else Lineage(*self.context)
        return LogEntry("", self.sender, recipients(self.to), self.kind, lineage, b"")


class NamedState(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A blob that the log names: where, and in which ways (A-06)."""

    hash: str
    first: int
    last: int
    time: float
    grants: tuple[GrantState, ...]


class WindowEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An id by which a repetition is recognised (G-27)."""

    id: str
    sender: str
    position: int


class Origin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a fork comes from: the other log, and the last entry that both have."""

    pod: str
    epoch: str
    position: int
    id: str

    def to_json(self) -> dict[str, Any]:
        """Return it as welcomes state it."""
        return msgspec.structs.asdict(self)


class State(msgspec.Struct, frozen=True, array_like=True):
    """Everything that deciding needs, as of one position of the log."""

    epoch: str
    term: int
    index: int  # of the next batch
    position: int  # of the next entry
    time: float
    present: tuple[str, ...] = ()
    window: Sequence[WindowEntry] = ()
    live: tuple[LiveState, ...] = ()
    dormant: tuple[DormantState, ...] = ()
    boot: str = ""  # of the machine, while this and what follows was written
    fsync: str = "always"  # how what follows is synced: "always" or "interval"
    origin: Origin | None = None
    cards: tuple[CardState, ...] = ()
    named: tuple[NamedState, ...] = ()
    named_privately: tuple[NamedState, ...] = ()
    owners: tuple[OwnerState, ...] = ()

    @property
    def is_fork_beginning(self) -> bool:
        """Whether this is a fork in which nothing has been said yet."""
        return self.origin is not None and self.position == self.origin.position + 1


class _EntryRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: str
    sender: str
    to: tuple[str, ...] | None
    kind: str
    context: _ContextRow | None
    text: bytes
    about: str | tuple[str, ...] | None = None  # one participant, or several
    contexts: tuple[_ContextRow, ...] = ()
    erased: bool = False
    card: bytes = b""
    attachments: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    owners: tuple[OwnerState, ...] = ()


class _BatchRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    term: int
    index: int
    position: int
    time: float
    entries: list[_EntryRow]


_encode = msgspec.msgpack.Encoder().encode
_decode_batch = msgspec.msgpack.Decoder(_BatchRow).decode
_decode_batch_head = msgspec.msgpack.Decoder(BatchHead).decode
_decode_state = msgspec.msgpack.Decoder(State).decode


def encode_batch(batch: Batch) -> bytes:
    """Return a batch as bytes."""
    rows = [_row(entry) for entry in batch.entries]
    return _encode((batch.term, batch.index, batch.position, batch.time, rows))


def decode_batch(data: bytes) -> Batch:
    """Return the batch that bytes hold. Raises msgspec.DecodeError."""
    found = _decode_batch(data)
    entries = [_entry(each, found.time) for each in found.entries]
    return Batch(found.term, found.index, found.position, found.time, entries)


def decode_batch_head(data: bytes) -> BatchHead:
    """Return the batch that bytes hold, without its entries. Raises msgspec.DecodeError."""
    return _decode_batch_head(data)


def encode_state(state: State) -> bytes:
    """Return a state as bytes.

    It is encoded in pieces: a large state takes long, and a thread that does this in one call would
    not let go of the interpreter's lock meanwhile.
    """
    fields = [getattr(state, name) for name in State.__struct_fields__]
    parts = [_array_head(len(fields))]
    for field in fields:
        single = field is None or isinstance(field, (str, int, float, Origin))
        parts += [_encode(field)] if single else _array(field)
    return b"".join(parts)


def decode_state(data: bytes) -> State:
    """Return the state that bytes hold. Raises msgspec.DecodeError."""
    return _decode_state(data)


def recipients(to: Iterable[str] | None) -> tuple[str, ...] | frozenset[str] | None:
    """Return `to` in the form in which entries keep it: long lists as sets."""
    if to is None:
        return None
    several = tuple(to)
    return several if len(several) <= SHORT_LIST else frozenset(several)


def _array(items: Sequence[Any]) -> Iterator[bytes]:
    yield _array_head(len(items))
    remaining = iter(items)
    while some := list(islice(remaining, _ENCODED_AT_ONCE)):
        yield _encode(some)[len(_array_head(len(some))) :]


def _array_head(length: int) -> bytes:
    """Return the beginning of a MessagePack array, as msgspec writes it."""
    if length < 16:
        return bytes((0x90 | length,))
    return b"\xdc" + length.to_bytes(2) if length < 65_536 else b"\xdd" + length.to_bytes(4)


def _row(entry: LogEntry) -> tuple[Any, ...]:
    lineage = entry.lineage
    context = None if lineage is None else (lineage.id, lineage.type, lineage.ancestors)
    row = (entry.id, entry.sender, entry.to, entry.kind, context, entry.text)
    if entry.attachments:
        names = (*row, None, (), False, b"", entry.attachments)
        return (*names, entry.private) if entry.private else names
    if entry.sender != GATEWAY and not entry.erased:
        return row
    contexts = [(each.id, each.type, each.ancestors) for each in entry.contexts]
    about = entry.about if len(entry.about) > 1 else entry.about[0] if entry.about else None
    if entry.owners:
        return (*row, about, contexts, entry.erased, b"", (), (), entry.owners)
    if entry.card:
        return (*row, about, contexts, entry.erased, entry.card)
    return (*row, about, contexts, True) if entry.erased else (*row, about, contexts)


def _entry(found: _EntryRow, time: float) -> LogEntry:
    about = found.about or ()
    return LogEntry(
        found.id,
        found.sender,
        recipients(found.to),
        found.kind,
        None if found.context is None else Lineage(*found.context),
        found.text,
        (about,) if isinstance(about, str) else about,
        tuple([Lineage(*each) for each in found.contexts]),
        time,
        found.erased,
        found.card,
        found.attachments,
        found.private,
        found.owners,
    )
