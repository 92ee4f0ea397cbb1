"""A disk in memory that crashes: unsynced writes are lost, kept, torn or reordered by sectors."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field

SECTOR = 512

Choose = Callable[[int], int]  # returns a number from 0 to below the argument


class CrashedError(Exception):
    """The simulated process has ended: nothing after this point happens."""


@dataclass
class _Content:
    stable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)  # numbers of unsynced sectors
    resized: bool = False


class SimulatedFile:
    def __init__(self, disk: "SimulatedDisk", content: _Content) -> None:
        self._disk = disk
        self._content = content

    @property
    def size(self) -> int:
        return len(self._content.current)

    def read(self, offset: int, size: int) -> bytes:
        return bytes(self._content.current[offset : offset + size])

    def write(self, offset: int, data: bytes) -> None:
        self._disk.step("write")
        content = self._content
        end = offset + len(data)
        if end > len(content.current):
            self._disk.grow(end - len(content.current))
            content.current.extend(bytes(end - len(content.current)))
            content.resized = True
        content.current[offset:end] = data
        content.dirty.update(range(offset // SECTOR, -(-end // SECTOR)))

    def sync(self) -> None:
        self._disk.step("sync")
        content = self._content
        content.stable[:] = content.current
        content.dirty.clear()
        content.resized = False

    def allocate(self, size: int) -> None:
        self._disk.step("allocate")
        more = size - len(self._content.current)
        if more > 0:
            self._disk.grow(more)
            self._content.current.extend(bytes(more))
            self._content.resized = True

    def truncate(self, size: int) -> None:
        self._disk.step("truncate")
        content = self._content
        del content.current[size:]
        content.resized = True

    def close(self) -> None:
        pass


class SimulatedDisk:
    """One folder. `fail` maps the number of a call to the errno with which it fails."""

    def __init__(self, capacity: int = 1 << 40) -> None:
        self.capacity = capacity
        self.fail: dict[int, int] = {}
        self.calls = 0
        self.log: list[str] = []
        self._names: dict[str, _Content] = {}
        self._stable_names: dict[str, _Content] = {}

    # --- what the log uses ---

    def names(self) -> list[str]:
        return sorted(self._names)

    def open(self, name: str, *, create: bool = False, write: bool = True) -> SimulatedFile:
        if create:
            self.step("create")
            if name in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._names[name] = _Content()
        return SimulatedFile(self, self._names[name])

    def remove(self, name: str) -> None:
        self.step("remove")
        del self._names[name]

    def rename(self, old: str, new: str) -> None:
        self.step("rename")
        self._names[new] = self._names.pop(old)

    def sync(self) -> None:
        self.step("sync folder")
        self._stable_names = dict(self._names)

    # --- what tests use ---

    @property
    def used(self) -> int:
        return sum(len(content.current) for content in self._names.values())

    def step(self, what: str) -> None:
        self.calls += 1
        self.log.append(what)
        code = self.fail.get(self.calls)
        if code is not None:
            raise OSError(code, os.strerror(code))

    def grow(self, more: int) -> None:
        if self.used + more > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def content(self, name: str) -> bytearray:
        return self._names[name].current

    def crash(self, choose: Choose) -> None:
        """Lose power: of what was not synced, any part may have reached the disk."""
        names = dict(self._stable_names)
        for name in self._names.keys() | names.keys():
            if self._names.get(name) is not names.get(name) and choose(2):
                if name in self._names:
                    names[name] = self._names[name]
                else:
                    del names[name]
        for content in names.values():
            kept = bytearray(content.stable)
            if content.resized and choose(2):
                size = len(content.current)
                del kept[size:]
                kept.extend(bytes(size - len(kept)))
            for sector in sorted(content.dirty):
                start, end = sector * SECTOR, min((sector + 1) * SECTOR, len(content.current))
                if start < len(kept) and choose(2):
                    end = min(end, len(kept))
                    kept[start:end] = content.current[start:end]
            content.current = kept
            content.stable = bytearray(kept)
            content.dirty.clear()
            content.resized = False
        self._names = names
        self._stable_names = dict(names)
        self.fail.clear()
