"""A small log with everything that a log can hold, written by a real pod.

`python -m tests.gateway.storage.sample_log` writes the recorded files in `vectors/`, once for each
version of the format. Never record an old version again: its files show that it can still be read.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.history.erasing import Erasure
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings, PodCore, Session
from mcpp_gateway.core.records import Batch, encode_batch, encode_state
from mcpp_gateway.log_tools.erase import erase_entries
from mcpp_gateway.log_tools.export import export
from mcpp_gateway.log_tools.fork import fork
from mcpp_gateway.storage.disk import OsDisk
from mcpp_gateway.storage.segment_log import SegmentLog, SegmentOptions
from mcpp_gateway.storage.segments import BATCH, STATE, NewRecord
from tests.gateway.harness import EVERYTHING, FREE, text

VECTORS = Path(__file__).parent / "vectors"
OPTIONS = SegmentOptions(segment_bytes=65_536, chunk_bytes=1024, reserve_bytes=1024)
LIMITS = PodLimits(**FREE, context_idle_seconds=60.0, history_messages=12)
NAMES = ["alice", "bob", "carol"]


class PodWithLog:
    """A pod whose entries are written to a folder as they are accepted, tick by tick."""

    def __init__(
        self, folder: Path, options: SegmentOptions = OPTIONS, names: Sequence[str] = NAMES
    ) -> None:
        ids = count()
        settings = [ParticipantSettings(name, Capabilities(EVERYTHING)) for name in names]
        self.pod = PodCore("pod", settings, LIMITS, new_id=lambda: f"sys-{next(ids)}")
        self.log = SegmentLog(OsDisk(folder), options)
        self.log.recover()
        self.now = 1_790_000_000.0
        self.term = 1
        self._index = 0
        self._position = 0
        self._salt = count(1)
        self._sessions: dict[str, Session] = {}
        self.log.create(self._state(), next(self._salt))

    def join(self, name: str) -> None:
        self._sessions[name], _ = self.pod.join(name, self.now)

    def leave(self, name: str) -> None:
        self.pod.leave(self._sessions.pop(name), self.now)

    def say(self, sender: str, id: str, payload: object = "hello", **members: Any) -> None:
        self.pod.receive(
            self._sessions[sender], text(id, sender, payload=payload, **members), self.now
        )

    def tick(self, seconds: float = 0.0) -> None:
        """Let time pass, and write what was accepted as one batch."""
        self.now += seconds
        self.pod.announce(self.now)
        self.pod.tick(self.now)
        entries = self.pod.journal.read(self._position, 1_000_000)
        if not entries:
            return
        batch = Batch(self.term, self._index, self._position, self.now, entries)
        record = NewRecord(BATCH, self._position, self.now, encode_batch(batch), len(entries))
        self.log.write([record])
        self.log.sync()
        self._index += 1
        self._position += len(entries)

    def roll(self) -> None:
        assert self.log.roll(self._state(), next(self._salt))

    def stop(self) -> None:
        self.log.stop(self._position, self.now)
        self.log.close()

    def _state(self) -> NewRecord:
        state = self.pod.snapshot(term=self.term, index=self._index, boot="boot", now=self.now)
        return NewRecord(STATE, self._position, self.now, encode_state(state))


def write_sample(folder: Path, *, stop: bool) -> None:
    """Write a log of two segments. Without a stop it ends in the middle of a write."""
    pod = PodWithLog(folder)
    pod.join("alice")
    pod.join("bob")
    pod.tick()
    pod.say("alice", "m0", 'grüße 👋 \u2028 \\ "')
    pod.say("alice", "m1", context={"id": "task", "type": "task"})
    pod.say("bob", "m2", context={"id": "step", "type": "reasoning", "parent": "task"})
    pod.tick(1.5)
    pod.say("bob", "m3", to=["alice"])
    pod.say("alice", "m4", to=[f"tool-{number}" for number in range(12)])
    pod.tick(0.25)
    pod.tick(120.0)  # both contexts expire
    pod.leave("bob")
    pod.tick(1.0)
    pod.roll()
    pod.term += 1  # as after a restart
    pod.join("carol")
    pod.say("carol", "m5", context={"id": "step"})  # revives both
    pod.tick(1.0)
    pod.say("alice", "m6", {"number": 1.5, "list": [None, True]})
    pod.tick(1.0)
    if stop:
        pod.stop()
        return
    end = pod.log.written_bytes
    newest = max(folder.glob("*.seg"))
    with newest.open("r+b") as file:
        file.seek(end)
        file.write(b"\xa1\x5e\x0c\xe1 the beginning of a record")


def write_fork(folder: Path) -> None:
    """Write a fork with erased entries and joint announcements, whose writer was killed at rest."""
    names = [f"agent-{number}" for number in range(30)]
    with TemporaryDirectory() as original:
        pod = PodWithLog(Path(original) / "pod", names=names)
        for number, name in enumerate(names):  # the last ten are announced together
            pod.join(name)
            if number % 10 == 9:
                pod.tick()
        for number in range(4):
            pod.say("agent-0", f"m{number}", context={"id": f"task-{number}", "type": "task"})
        pod.say("agent-1", "m4", "to be erased", context={"id": "task-0"})
        pod.tick(1.0)
        pod.tick(120.0)  # the contexts expire together
        pod.say("agent-2", "m5", context={"id": "task-3"})
        pod.tick(1.0)
        pod.stop()
        erasure = Erasure(participant="agent-1", by="operator")
        erase_entries(Path(original) / "pod", erasure, dry_run=False)
        last = json.loads(list(export(Path(original) / "pod"))[-1])
        fork(Path(original) / "pod", folder, last["id"])
    log = SegmentLog(OsDisk(folder), OPTIONS)
    log.recover()
    log.mark()
    os.truncate(max(folder.glob("*.seg")), log.written_bytes + OPTIONS.reserve_bytes)


SAMPLES: Final[dict[str, Callable[[Path], None]]] = {
    "stopped": lambda folder: write_sample(folder, stop=True),
    "crashed": lambda folder: write_sample(folder, stop=False),
    "fork": write_fork,
}


def main() -> None:
    """Write the samples of a version that are not recorded yet."""
    for name, write in SAMPLES.items():
        folder = VECTORS / sys.argv[1] / name
        if folder.exists():
            continue
        write(folder)
        lines = b"".join(line + b"\n" for line in export(folder))
        (VECTORS / sys.argv[1] / f"{name}.jsonl").write_bytes(lines)


if __name__ == "__main__":
    main()
