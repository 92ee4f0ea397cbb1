"""Checking a log against every checksum and every rule of its format."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.records import (
    Batch,
    DormantState,
    LiveState,
    State,
    decode_batch,
    decode_state,
)
from mcpp_gateway.log_tools.reader import LogReader
from mcpp_gateway.storage.segments import BATCH, KINDS, STATE, DamagedError, Record

# Replaying decides nothing, so the limits that the pod had matter for dormant contexts only.
_LIMITS: Final = PodLimits()


class Verification:
    """One pass over a log. Owns what the next record is compared with."""

    def __init__(self, folder: Path) -> None:
        """Open a log. Raises McppError."""
        self.reader = LogReader(folder, tolerant=True)
        self.problems: list[str] = [str(error) for error in self.reader.damage]
        self.entries = 0
        self._progress: Callable[[int], None]
        self._records: Iterator[tuple[str, Record]]
        self._state: State | None = None  # the latest
        self._where = ""  # the place of the record that is being checked
        # What the next record must have; None behind a part that could not be read.
        self._position: int | None = None
        self._index: int | None = None
        self._term = 0
        self._time = 0.0
        self._gap = False  # whether something since the last state could not be read
        self._ids: dict[int, str] = {}  # by position, since the last state's window began

    def run(self, progress: Callable[[int], None] = lambda entries: None) -> list[str]:
        """Check everything and return the problems. `progress` gets the number of entries."""
        self._progress = progress
        self._records = self._read()
        for _ in self._batches():  # in a complete log there are none before the first state
            self._report("a batch before the first state")
        while (state := self._state) is not None:
            self._gap = False
            self._ids = {each.position: each.id for each in state.window}
            pod = PodCore("verify", (), _LIMITS, new_id=str)
            pod.restore(state, self._batches(), 0.0)
            if self._state is not None and not self._gap:
                self._compare(pod, self._state)
        return self.problems

    # --- private --------------------------------------------------------------------------------

    def _report(self, reason: str) -> None:
        self.problems.append(f"{self._where}: {reason}")

    def _read(self) -> Iterator[tuple[str, Record]]:
        for each in self.reader.segments:
            try:
                for record in self.reader.records(each):
                    yield each.segment.name, record
            except DamagedError as error:
                self.problems.append(str(error))
                self._gap = True
                self._index = self._position = None

    def _batches(self) -> Iterator[Batch]:
        """Check the records up to the next state, and yield the batches."""
        self._state = None
        for name, record in self._records:
            self._where = f"{name} at byte {record.offset}"
            if record.kind not in KINDS:
                self._report(f"a record has the unknown kind {record.kind}")
            self._expect("the record's position", record.position, self._position)
            self._position = record.position + record.entries
            try:
                if record.kind == STATE:
                    state = decode_state(record.payload)
                    self._check_state(record, state)
                    self._state = state
                    return
                if record.kind == BATCH:
                    batch = decode_batch(record.payload)
                    self._check_batch(record, batch)
                    yield batch
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._report(f"the record cannot be decoded: {error}")
                self._gap = True
                self._index = None
            self._progress(self.entries)

    def _check_batch(self, record: Record, batch: Batch) -> None:
        self._expect("the batch's position", batch.position, record.position)
        self._expect("the number of entries", len(batch.entries), record.entries)
        self._expect("the batch's time", batch.time, record.time)
        self._expect("the batch's index", batch.index, self._index)
        if batch.term < self._term:
            self._report(f"the term falls from {self._term} to {batch.term}")
        if batch.time < self._time:
            self._report(f"the time falls from {self._time} to {batch.time}")
        for position, entry in enumerate(batch.entries, batch.position):
            entry.text.decode()
            self._ids[position] = entry.id
        self._index, self._term, self._time = batch.index + 1, batch.term, batch.time
        self.entries += len(batch.entries)

    def _check_state(self, record: Record, state: State) -> None:
        self._expect("the state's position", state.position, record.position)
        self._expect("the state's index", state.index, self._index)
        if state.term < self._term:
            self._report(f"the term falls from {self._term} to {state.term}")
        self._index, self._term = state.index, max(state.term, self._term)
        positions = [each.position for each in state.window]
        if positions != list(range(record.position - len(positions), record.position)):
            self._report("the dedupe window does not end with the last entry")
        for each in state.window:
            if self._ids.get(each.position, each.id) != each.id:
                self._report(f"the dedupe window has another id at position {each.position}")

    def _compare(self, pod: PodCore, state: State) -> None:
        """Compare a state with what replaying the batches before it gives."""
        if state.epoch != pod.epoch:
            return  # a part was lost, and the log began a new epoch
        if set(state.present) != set(pod.participants):
            self._report("the state's participants are not those that the log has present")
        live, dormant = pod.tree.snapshot()
        if {each.id for each in dormant} != {each.id for each in state.dormant}:
            return  # more than the pod was configured to keep
        if _contexts(live) != _contexts(state.live):
            self._report("the state's live contexts are not those that the log has")
        if _contexts(dormant) != _contexts(state.dormant):
            self._report("the state's dormant contexts are not those that the log has")

    def _expect(self, name: str, value: float, expected: float | None) -> None:
        if expected is not None and value != expected:
            self._report(f"{name} is {value} instead of {expected}")


def _contexts(
    states: tuple[LiveState, ...] | tuple[DormantState, ...],
) -> dict[str, tuple[object, ...]]:
    """Return what replaying reproduces exactly; times are those of whole batches."""
    return {each.id: (each.type, each.parent, each.creator, each.messages) for each in states}
