"""A pod's log out of a cluster and into one, as lines of JSON: to move it, to back it up, to erase.

A stream that is exported to be moved is sealed first: nothing can be added to it any more, so the
export is complete, and no two logs go on under one epoch.
"""

from collections.abc import AsyncIterator, Callable, Container, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from mcpp_gateway.blobs.folder import BLOBS, BlobFolder
from mcpp_gateway.blobs.store import copy_between
from mcpp_gateway.cluster.blob_stream import BlobStream
from mcpp_gateway.cluster.cluster_log import command_streams
from mcpp_gateway.cluster.streams import Streams
from mcpp_gateway.config import Config
from mcpp_gateway.core.cluster.journal import ClusterJournal
from mcpp_gateway.core.cluster.leading.leadership import Silence, StreamFence
from mcpp_gateway.core.cluster.pod import ClusterPod
from mcpp_gateway.core.cluster.records import (
    Claim,
    ClusterBatch,
    ClusterState,
    decode_record,
    encode_record,
)
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.records import Batch, State, decode_batch, decode_state
from mcpp_gateway.log_tools import export as exports
from mcpp_gateway.log_tools.export import Imported
from mcpp_gateway.log_tools.new_folder import new_folder
from mcpp_gateway.log_tools.reader import LogReader, LogToolError
from mcpp_gateway.storage.segments import BATCH, STATE

_SENT_AT_ONCE: Final = 64
_IMPORTER: Final = "import"  # in the place of a gateway
_TERM: Final = 1


# --- export ---------------------------------------------------------------------------------------


async def export(config: Config, pod: str, *, seal: bool) -> AsyncIterator[bytes]:
    """Yield the lines of a pod's log in a cluster, without line ends. Raises McppError."""
    async with command_streams(config, "transfer") as streams:
        stream = streams.log_stream(pod)
        info = await _info(streams, pod)
        # Before the end: a leader may store both meanwhile, and the state is not ahead then.
        state = await streams.load_state(pod)
        if seal and not info["config"].get("sealed"):
            await streams.call(f"STREAM.UPDATE.{stream}", {**info["config"], "sealed": True})
        info = await _info(streams, pod)
        first, last = max(1, info["state"]["first_seq"]), info["state"]["last_seq"]
        end = await _end_of(streams, pod, config, state=state, first=first, last=last)
        exporter = _Exporter(pod, end)
        fence = StreamFence(first)
        async for found in streams.read_all(pod, first, last):
            for sequence, data in found:
                try:
                    record = decode_record(data)
                except msgspec.DecodeError:
                    continue  # gateways ignore it, too
                for each in () if record is None else fence.take(sequence, record):
                    for line in exporter.take(each):
                        yield line
        for line in exporter.finish():
            yield line


async def _end_of(
    streams: Streams,
    pod: str,
    config: Config,
    *,
    state: ClusterState | None,
    first: int,
    last: int,
) -> ClusterPod:
    """Return a pod as it is at the end of its log. The epoch there is that of the export."""
    replica = _follower(pod, config)
    if state is not None and state.sequence > last:
        if first > 1:
            raise LogToolError(f"the log of pod {pod!r} has lost its end, and begins too late")
        state = None  # of records that were lost (N-14)
    if state is not None:
        replica.begin(state)
        first = max(first, state.sequence + 1)
    async for found in streams.read_all(pod, first, last):
        for sequence, data in found:
            replica.apply(sequence, data, 0.0)
    return replica


async def export_blobs(config: Config, pod: str, destination: Path, hashes: Container[str]) -> int:
    """Copy blobs out of a cluster into a new folder; return how many. Raises McppError."""
    with new_folder(destination) as folder:
        store = BlobFolder(folder)
        try:
            async with command_streams(config, "transfer") as streams:
                return await copy_between(_blobs(streams), store, pod, hashes)
        finally:
            await store.close()


class _Exporter:
    """Turns the records that count into lines. Batches are numbered again, without empty ones."""

    def __init__(self, pod: str, replica: ClusterPod) -> None:
        self._pod = pod
        self._replica = replica
        self._index = -1  # -1: nothing was exported yet
        self._term = 0

    def take(self, record: ClusterBatch | Claim) -> Iterator[bytes]:
        if isinstance(record, Claim) or not record.batch.entries:
            return
        batch = record.batch
        if self._index < 0:
            yield from self._begin(batch.position, batch.time)
        self._term = batch.term
        numbered = msgspec.structs.replace(batch, index=self._index)
        self._index += 1
        yield from exports.entry_lines(numbered)

    def finish(self) -> Iterator[bytes]:
        """Yield the state at the end, which holds contexts, presence and the dedupe window."""
        state = self._replica.replica.snapshot().state
        if self._index < 0:
            yield from self._begin(state.position, state.time)
        term = max(self._term, state.term)
        rows = tuple(state.window)
        state = msgspec.structs.replace(state, index=self._index, term=term, window=rows)
        yield exports.state_line(state, state.time)

    def _begin(self, position: int, time: float) -> Iterator[bytes]:
        epoch = self._replica.replica.epoch
        self._index = 0
        yield exports.header_line(self._pod, epoch, position)
        yield exports.state_line(State(epoch, 0, 0, position, time), time)


# --- import ---------------------------------------------------------------------------------------


async def import_lines(
    lines: Iterable[bytes],
    config: Config,
    pod: str,
    *,
    new_epoch: str | None,
    replace: bool,
    complete: Callable[[Path], None] = lambda folder: None,
) -> Imported:
    """Write an exported log into a new stream. Raises McppError and OSError.

    `complete` adds to the pod's folder, which holds the log until it is in the cluster.
    """
    with TemporaryDirectory() as temporary:
        folder = Path(temporary) / pod
        # Checked completely first.
        imported = exports.import_lines(lines, folder, new_epoch, complete)
        async with command_streams(config, "transfer") as streams:
            await _make_room(streams, pod, replace=replace)
            # First: what the log names has to be there.
            await _import_blobs(streams, pod, folder / BLOBS)
            await streams.create_states()
            await streams.create(pod)
            await _publish(streams, pod, config, LogReader(folder))
    return imported


async def _import_blobs(streams: Streams, pod: str, folder: Path) -> None:
    store = BlobFolder(folder)
    try:
        hashes = {each.hash for each in await store.load(pod)}
        if hashes:
            blobs = _blobs(streams)
            await blobs.load(pod)  # creates the stream, if there is none
            await copy_between(store, blobs, pod, hashes)
    finally:
        await store.close()


async def _make_room(streams: Streams, pod: str, *, replace: bool) -> None:
    found = await streams.info(streams.log_stream(pod))
    if found is None or not found["state"]["last_seq"]:
        return
    if not replace:
        raise LogToolError(
            f"the cluster holds a log of pod {pod!r}; --replace deletes a sealed one"
        )
    if not found["config"].get("sealed"):
        raise LogToolError(f"the log of pod {pod!r} in the cluster is in use; seal it by an export")
    await streams.call(f"STREAM.DELETE.{streams.log_stream(pod)}", {})


async def _publish(streams: Streams, pod: str, config: Config, reader: LogReader) -> None:
    """Store the records of a log in files, and the state at their end."""
    state = _final_state(pod, config, reader)
    records = [encode_record(Claim(_TERM, _IMPORTER, state.time, state.epoch))]
    start = state.window[0].position if state.window else state.position
    index = sequence = window_sequence = 0
    for batch in _batches(reader):
        numbered = msgspec.structs.replace(batch, term=_TERM, index=index)
        index += 1
        records.append(encode_record(ClusterBatch(numbered)))
        if batch.position <= start:
            window_sequence = sequence + len(records)
        if len(records) >= _SENT_AT_ONCE:
            sequence = await _store(streams, pod, records, sequence)
    sequence = await _store(streams, pod, records, sequence)
    end = msgspec.structs.replace(state, term=_TERM, index=index)
    # No gateway leads, and those present have no session: they may come back, as after a restart.
    present = dict.fromkeys(end.present, end.time)
    kept = ClusterState(1, sequence, window_sequence or 1, None, end, absent=present)
    await streams.store_state(pod, kept)


async def _store(streams: Streams, pod: str, records: list[bytes], sequence: int) -> int:
    """Store records in their order, and return the sequence number of the last one."""
    for acknowledged in await streams.append(pod, records):
        sequence += 1
        if acknowledged != sequence:
            raise LogToolError("another process writes to the stream")
    records.clear()
    return sequence


def _batches(reader: LogReader) -> Iterator[Batch]:
    for segment in reader.segments:
        for record in reader.records(segment):
            if record.kind == BATCH:
                yield decode_batch(record.payload)


def _final_state(pod: str, config: Config, reader: LogReader) -> State:
    """Return the state at the end of a log in files, as a gateway that opens it has it."""
    state, batches = None, list[Batch]()
    for record in reader.records(reader.segments[-1]):
        if record.kind == STATE:
            state, batches = decode_state(record.payload), []
        elif record.kind == BATCH:
            batches.append(decode_batch(record.payload))
    assert state is not None, "every segment begins with one"
    journal = ClusterJournal(config.limits.history_messages, config.limits.history_bytes)
    journal.restore(state.position, state.window, 1)
    for batch in batches:
        for entry in batch.entries:
            journal.append(entry)
    journal.trim()
    core = PodCore(pod, (), config.limits, new_id=lambda: "", journal=journal)
    core.restore(state, batches, 0.0)
    end = batches[-1].time if batches else state.time
    return core.snapshot(term=0, index=0, boot="", now=max(end, state.time))


# --- both -----------------------------------------------------------------------------------------


def _blobs(streams: Streams) -> BlobStream:
    return BlobStream(streams.link, streams, may_delete=lambda pod: False)


async def _info(streams: Streams, pod: str) -> dict[str, Any]:
    found = await streams.info(streams.log_stream(pod))
    if found is None:
        raise LogToolError(f"the cluster holds no log of pod {pod!r}")
    return found


class _NoWire:
    """The wire of a pod that only follows the log."""

    def append(self, record: bytes) -> None:
        """Add nothing."""

    def forward(self, gateway: str, message: bytes) -> None:
        """Send nothing."""

    def relay(self, text: bytes) -> None:
        """Do nothing: no session sends anything."""

    def wake(self) -> None:
        """Flush nothing."""

    def save(self, state: ClusterState) -> None:
        """Keep nothing."""


def _follower(pod: str, config: Config) -> ClusterPod:
    return ClusterPod(
        pod,
        (),
        config.limits,
        new_id=lambda: "",
        gateway="export",
        wire=_NoWire(),
        silence=Silence(),
    )
