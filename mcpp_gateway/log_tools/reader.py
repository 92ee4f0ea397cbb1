"""Reading a log's segments from outside, beside a gateway that may be writing to them.

Nothing is locked and nothing is changed. What a running gateway has not completely written yet is
the end of the log; what retention deletes meanwhile was never there.
"""

import fcntl
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from mcpp.errors import McppError
from mcpp_gateway.storage import segments
from mcpp_gateway.storage.disk import OsDisk, OsFile
from mcpp_gateway.storage.erasure import is_decided
from mcpp_gateway.storage.log_store import LOCK
from mcpp_gateway.storage.recovery import check_end, check_seal
from mcpp_gateway.storage.segment_files import BAD_CHECKSUM, Segment
from mcpp_gateway.storage.segments import HEADER_BYTES, SEAL, STATE, DamagedError, Record

# A gateway that begins a new segment seals the old one right behind it.
_SEAL_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.02


class LogToolError(McppError):
    """A command that cannot be carried out, described in one line."""


class OpenSegment(NamedTuple):
    """A segment, its open file, and the segment that follows it."""

    segment: Segment
    file: OsFile
    following: Segment | None  # None: it is the newest


class LogReader:
    """The log in one folder, as it was when this was created. Owns the open files."""

    def __init__(self, folder: Path, *, tolerant: bool = False) -> None:
        """Open a pod's folder. Raises LogToolError, LogFormatError and DamagedError.

        If `tolerant`, segments that cannot be opened are left out and named in `damage`.
        """
        self.folder = folder
        self.damage: list[DamagedError] = []
        self.running = is_in_use(folder)
        self.stopped = False  # whether the newest segment, once read, ended with a stop's seal
        self.unfinished_bytes = 0  # of a write that is going on, or was interrupted
        self.unfinished_segment: str | None = None  # one whose creation is, or was
        self._disk = OsDisk(folder, create=False)
        if is_decided(self._disk) and not self.running:
            raise LogToolError("an erasure was interrupted; `mcpp log erase` again completes it")
        self.segments = self._open()
        if self.damage and not tolerant:
            raise self.damage[0]
        if not self.segments and not self.damage:
            raise LogToolError(f"{folder} holds no log")

    @property
    def pod(self) -> str:
        """The name of the pod."""
        return self.folder.resolve().name

    def records(self, each: OpenSegment) -> Iterator[Record]:
        """Yield the records of a segment. Raises DamagedError."""
        segment, file, following = each
        if following is not None:
            self.await_seal(segment, file, following)
        offset, last = HEADER_BYTES, None
        while True:
            record = segments.read_record(file, segment.header.salt, offset)
            if record is not None:
                yield record
                offset, last = record.end, record
            elif following is not None:
                if offset != file.size:
                    raise DamagedError(segment.name, offset, BAD_CHECKSUM)
                return
            elif last is not None and last.kind == SEAL and last.payload != segments.STOPPED:
                if not self.running:
                    raise DamagedError(segment.name, offset, "the segment that follows is missing")
                return  # a new segment was begun since the folder was listed
            elif self._ends(segment, file, offset):
                self.stopped = last is not None and last.kind == SEAL
                return

    def _open(self) -> tuple[OpenSegment, ...]:
        while True:
            names = [name for name in self._disk.names() if segments.is_segment_name(name)]
            opened: list[tuple[Segment, OsFile]] = []
            self.damage.clear()
            try:
                for name in names:
                    try:
                        found = self._open_segment(name, newest=name == names[-1])
                    except DamagedError as error:
                        self.damage.append(error)
                        continue
                    if found is not None:
                        opened.append(found)
            except FileNotFoundError:
                continue  # retention has deleted it
            following = [segment for segment, _ in opened[1:]]
            return tuple(
                OpenSegment(segment, file, behind)
                for (segment, file), behind in zip_longest(opened, following)
            )

    def _open_segment(self, name: str, *, newest: bool) -> tuple[Segment, OsFile] | None:
        file = self._disk.open(name, write=False)
        header = segments.decode_header(name, file.read(0, HEADER_BYTES))
        if header is not None:
            segment = Segment(name, header)
            segment.size_bytes = file.size
            state = segments.read_record(file, header.salt, HEADER_BYTES)
            if not newest or (state is not None and state.kind == STATE):
                return segment, file
        if not newest or next(segments.read_heads(file, HEADER_BYTES, file.size), None):
            raise DamagedError(name, 0, "the segment's beginning is unreadable")
        self.unfinished_segment = name
        return None

    def await_seal(self, segment: Segment, file: OsFile, following: Segment) -> None:
        """Return once a closed segment has its seal. Raises DamagedError if it has none."""
        deadline = time.monotonic() + (_SEAL_SECONDS if self.running else 0.0)
        while True:
            try:
                return check_seal(file, segment, following.header)
            except DamagedError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(_POLL_SECONDS)

    def _ends(self, segment: Segment, file: OsFile, offset: int) -> bool:
        """Return whether the newest segment ends here; False if a record has appeared meanwhile.

        Raises DamagedError.
        """
        try:
            self.unfinished_bytes = check_end(segment, file, offset)
        except DamagedError:
            # Written and followed by others while this was reading?
            if segments.read_record(file, segment.header.salt, offset) is not None:
                return False
            raise
        return True


def is_in_use(folder: Path) -> bool:
    """Return whether a gateway is running on the log of this folder."""
    with suppress(FileNotFoundError), (folder.resolve().parent / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def pod_folder(path: Path, pod: str | None) -> Path:
    """Return the folder of a pod, given that folder, or a log path and perhaps the pod's name."""
    if pod is not None:
        if pod in ("", ".", "..") or "/" in pod:
            raise LogToolError(f"{pod!r} is no name of a pod")
        if not (path / pod).is_dir():
            raise LogToolError(f"{path} holds no log of pod {pod!r}")
        return path / pod
    if not path.is_dir():
        problem = "is no folder" if path.exists() else "does not exist"
        raise LogToolError(f"{path} {problem}")
    pods = pod_folders(path)
    if len(pods) > 1:
        names = ", ".join(each.name for each in pods)
        raise LogToolError(f"{path} holds the logs of {names}; choose one with --pod")
    if not pods:
        raise LogToolError(f"{path} holds no log")
    return pods[0]


def pod_folders(path: Path) -> list[Path]:
    """Return the folders of the pods in a log path; the path itself, if it is that of a pod."""
    if _has_segments(path):
        return [path]
    return sorted(each for each in path.iterdir() if each.is_dir() and _has_segments(each))


def _has_segments(folder: Path) -> bool:
    return any(segments.is_segment_name(each.name) for each in folder.iterdir())
