"""A log as lines of JSON, and back.

The first line is a header. Then every record of the log follows in its order: a state as one line,
a batch as a line for each of its entries. States are exported too, so that an import needs none of
the gateway's logic to keep contexts and dedupe window, and begins its segments where the original
did. `spec/log.md` describes the members.
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec

from mcpp.protocol.contexts import Lineage
from mcpp_gateway.core.records import (
    Batch,
    LogEntry,
    OwnerState,
    State,
    decode_batch,
    decode_state,
    encode_batch,
    encode_state,
    recipients,
)
from mcpp_gateway.log_tools.new_folder import new_folder
from mcpp_gateway.log_tools.reader import LogReader, LogToolError, OpenSegment, is_in_use
from mcpp_gateway.storage.disk import OsDisk, sync_path
from mcpp_gateway.storage.log_store import SEALED
from mcpp_gateway.storage.segment_log import SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import BATCH, STATE, DamagedError, NewRecord

T = TypeVar("T")

FORMAT: Final = "mcpp-log"
VERSION: Final = 1
# Not much is reserved ahead: an import that finds no space starts again.
_OPTIONS: Final = SegmentOptions(chunk_bytes=8 << 20, reserve_bytes=0)


# A Unix time that can be shown as a date: a file may come from anywhere.
_Time = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class ExportHeader(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The first line."""

    format: str
    version: int
    pod: str
    epoch: str  # at the end of the log
    start: int  # the position of the first entry
    partial: bool = False  # whether damaged parts were left out


class ExportedState(msgspec.Struct):
    """A state, as an array in the order of its members, and the time of its record."""

    state: State
    time: _Time


class ExportedContext(msgspec.Struct, omit_defaults=True):
    """The context of an entry, as it stood when the entry was accepted."""

    id: str
    type: str | None = None
    ancestors: tuple[str, ...] = ()


class ExportedEntry(msgspec.Struct, omit_defaults=True, kw_only=True):
    """An entry with what its batch says of it. `text` is the sender's own text, byte for byte."""

    position: int
    time: _Time
    term: int
    index: int
    id: str
    sender: str
    kind: str
    to: tuple[str, ...] | None = None
    context: ExportedContext | None = None
    about: str | tuple[str, ...] | None = None  # one participant, or several
    contexts: tuple[ExportedContext, ...] = ()
    text: str
    erased: bool = False
    card: str = ""  # that the entry announces
    attachments: tuple[str, ...] = ()  # hashes of blobs, which are in a folder of their own
    private: tuple[str, ...] = ()  # those of them that are only for the addressees
    owners: tuple[OwnerState, ...] = ()  # issuers of the participants of a presence


_encode = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(ExportHeader).decode
_decode_exported_state = msgspec.json.Decoder(ExportedState).decode
_decode_entry = msgspec.json.Decoder(ExportedEntry).decode


class Imported(NamedTuple):
    """What was imported."""

    entries: int
    epoch: str


# --- export ---------------------------------------------------------------------------------------


def export(folder: Path) -> Iterator[bytes]:
    """Yield the lines of a log, without line ends. Raises McppError and OSError."""
    reader = LogReader(folder)
    yield _first_line(reader, reader.segments)
    for each in reader.segments:
        yield from _lines(reader, each)


def export_readable(folder: Path) -> tuple[Iterator[bytes], list[DamagedError]]:
    """Return the lines of what can be read of a damaged log in one piece, and the damage.

    That is what follows the youngest damaged segment but the newest, up to the first damage in
    that. Raises McppError and OSError.
    """
    reader = LogReader(folder, tolerant=True)
    damage = list(reader.damage)
    if not reader.segments:
        raise damage[0]
    chosen = reader.segments
    for at, each in enumerate(reader.segments):
        try:
            for _ in _lines(reader, each):
                pass
        except DamagedError as error:
            damage.append(error)
            chosen = reader.segments[at + 1 :] or chosen
    return _readable_lines(reader, chosen, partial=bool(damage)), damage


def _readable_lines(
    reader: LogReader, chosen: Sequence[OpenSegment], *, partial: bool
) -> Iterator[bytes]:
    yield _first_line(reader, chosen, partial=partial)
    for each in chosen:
        with suppress(DamagedError):  # of the newest: the rest was left out
            yield from _lines(reader, each)


def header_line(pod: str, epoch: str, start: int, *, partial: bool = False) -> bytes:
    """Return the first line of an export."""
    return _encode(
        ExportHeader(
            format=FORMAT, version=VERSION, pod=pod, epoch=epoch, start=start, partial=partial
        )
    )


def state_line(state: State, time: float) -> bytes:
    """Return a state as a line."""
    return _encode(ExportedState(state, time))


def entry_lines(batch: Batch) -> Iterator[bytes]:
    """Yield the entries of a batch as lines."""
    return map(_encode, _exported(batch))


def _first_line(
    reader: LogReader, chosen: Sequence[OpenSegment], *, partial: bool = False
) -> bytes:
    epoch = ""
    with suppress(DamagedError) if partial else nullcontext():
        for record in reader.records(chosen[-1]):
            if record.kind == STATE:
                epoch = decode_state(record.payload).epoch
    return header_line(reader.pod, epoch, chosen[0].segment.header.position, partial=partial)


def _lines(reader: LogReader, each: OpenSegment) -> Iterator[bytes]:
    for record in reader.records(each):
        try:
            if record.kind == STATE:
                yield state_line(decode_state(record.payload), record.time)
            elif record.kind == BATCH:
                yield from entry_lines(decode_batch(record.payload))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DamagedError(each.segment.name, record.offset, str(error)) from error


def _exported(batch: Batch) -> Iterator[ExportedEntry]:
    for position, entry in enumerate(batch.entries, batch.position):
        lineage, to = entry.lineage, entry.to
        yield ExportedEntry(
            position=position,
            time=batch.time,
            term=batch.term,
            index=batch.index,
            id=entry.id,
            sender=entry.sender,
            kind=entry.kind,
            to=tuple(sorted(to)) if isinstance(to, frozenset) else to,
            context=None if lineage is None else _context(lineage),
            about=entry.about[0] if len(entry.about) == 1 else entry.about or None,
            contexts=tuple(map(_context, entry.contexts)),
            text=entry.text.decode(),
            erased=entry.erased,
            card=entry.card.decode(),
            attachments=entry.attachments,
            private=entry.private,
            owners=entry.owners,
        )


def _context(lineage: Lineage) -> ExportedContext:
    return ExportedContext(lineage.id, lineage.type, lineage.ancestors)


def _lineage(context: ExportedContext) -> Lineage:
    return Lineage(context.id, context.type, context.ancestors)


def seal(folder: Path) -> None:
    """Let no gateway open a log any more, because it goes on elsewhere. Raises LogToolError."""
    if is_in_use(folder):
        raise LogToolError("a gateway is running on this log; stop it before you seal the log")
    (folder / SEALED).touch(mode=0o600)
    sync_path(folder)


# --- import ---------------------------------------------------------------------------------------


def import_lines(
    lines: Iterable[bytes],
    folder: Path,
    new_epoch: str | None = None,
    complete: Callable[[Path], None] = lambda folder: None,
) -> Imported:
    """Write an exported log into a new folder. Raises McppError and OSError.

    Positions, batches and segments are those of the original, and so is the epoch unless
    `new_epoch` is given. `complete` adds to the folder before it gets its name.
    """
    numbered = enumerate(lines, 1)
    first = next(numbered, (1, b""))[1]
    if not first:
        raise LogToolError("the input is empty")
    header = _read(_decode_header, 1, first)
    if header.format != FORMAT:
        raise LogToolError("line 1: this is no exported log")
    if header.version > VERSION:
        raise LogToolError(
            f"the export has version {header.version}; this program reads version {VERSION}"
        )
    if header.partial and new_epoch is None:
        raise LogToolError("the export leaves out damaged parts: use --new-epoch")
    with new_folder(folder) as temporary:
        importer = _Importer(SegmentLog(OsDisk(temporary), _OPTIONS), new_epoch)
        for number, line in numbered:
            importer.take(number, line)
        imported = importer.finish()
        complete(temporary)
        return imported


class _Importer:
    """Writes lines to a log. Owns the batch that is being collected."""

    def __init__(self, log: SegmentLog, new_epoch: str | None) -> None:
        log.recover()
        self._log = log
        self._new_epoch = new_epoch
        self._epoch = ""
        self._entries: list[LogEntry] = []
        self._batch: ExportedEntry  # the first entry of the batch that is being collected
        self._count = 0
        self._position: int | None = None
        self._index = 0
        self._term = 0
        self._time = 0.0

    def take(self, number: int, line: bytes) -> None:
        """Read the next line. Raises LogToolError if it does not follow the one before."""
        if line.startswith(b'{"state"'):
            self._flush()
            self._take_state(number, _read(_decode_exported_state, number, line))
        else:
            self._take_entry(number, _read(_decode_entry, number, line))

    def finish(self) -> Imported:
        """Write the rest and the seal of an orderly stop."""
        if self._position is None:
            raise LogToolError("the export holds no state")
        self._flush()
        self._log.stop(self._position, self._time)
        self._log.close()
        return Imported(self._count, self._epoch)

    def _take_state(self, number: int, exported: ExportedState) -> None:
        state, time = exported.state, exported.time
        if self._new_epoch is not None:
            state = msgspec.structs.replace(state, epoch=self._new_epoch)
        record = NewRecord(STATE, state.position, time, encode_state(state))
        salt = secrets.randbits(32)
        if self._position is None:
            self._log.create(record, salt)
        else:
            _expect(number, "position", state.position, self._position)
            _expect(number, "index", state.index, self._index)
            self._log.sync()
            if not self._log.roll(record, salt):
                raise LogToolError("there is no space left on the disk")
        self._epoch, self._position, self._index = state.epoch, state.position, state.index
        self._time = max(self._time, time)

    def _take_entry(self, number: int, entry: ExportedEntry) -> None:
        if self._position is None:
            raise LogToolError(f"line {number}: an entry before the first state")
        _expect(number, "position", entry.position, self._position + len(self._entries))
        if self._entries and entry.index != self._batch.index:
            self._flush()
        if not self._entries:
            _expect(number, "index", entry.index, self._index)
            if entry.term < self._term:
                raise LogToolError(f"line {number}: the term is lower than before")
            self._batch = entry
        elif (entry.term, entry.time) != (self._batch.term, self._batch.time):
            raise LogToolError(f"line {number}: term or time differ from those of the batch")
        context = entry.context
        self._entries.append(
            LogEntry(
                entry.id,
                entry.sender,
                recipients(entry.to),
                entry.kind,
                None if context is None else _lineage(context),
                entry.text.encode(),
                (entry.about,) if isinstance(entry.about, str) else entry.about or (),
                tuple(map(_lineage, entry.contexts)),
                erased=entry.erased,
                card=entry.card.encode(),
                attachments=entry.attachments,
                private=entry.private,
                owners=entry.owners,
            )
        )

    def _flush(self) -> None:
        if not self._entries:
            return
        assert self._position is not None
        first, entries = self._batch, self._entries
        batch = Batch(first.term, first.index, first.position, first.time, entries)
        record = NewRecord(BATCH, first.position, first.time, encode_batch(batch), len(entries))
        self._log.grow()
        self._log.write([record])
        self._count += len(entries)
        self._position += len(entries)
        self._index, self._term = first.index + 1, first.term
        self._time = max(self._time, first.time)
        self._entries = []


def _expect(number: int, name: str, value: int, expected: int) -> None:
    if value != expected:
        raise LogToolError(f"line {number}: {name} is {value} instead of {expected}")


def _read(decode: Callable[[bytes], T], number: int, line: bytes) -> T:
    try:
        return decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LogToolError(f"line {number}: {error}") from None
