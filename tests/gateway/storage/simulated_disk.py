"""A disk in memory that crashes: unsynced writes are lost, kept, torn or reordered by sectors.

It keeps what POSIX promises and no more. A file's data and length are stable after a sync of the
file, its name after a sync of the folder. A crash keeps any subset of everything else: each sector
and each change of a name by itself, and for the length any of those it has had since the last sync.
A sync that fails marks its sectors as clean, written or not, as Linux does: the page cache then
holds what the disk does not, and a later sync does not write it.
"""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field

Choose = Callable[[int], int]  # returns a number from 0 to below the argument


@dataclass
class _Content:
    stable: bytearray = field(default_factory=bytearray)
    current: bytearray = field(default_factory=bytearray)
    dirty: set[int] = field(default_factory=set)  # numbers of unsynced sectors
    sizes: list[int] = field(default_factory=list)  # lengths since the last sync

    def resize(self, size: int) -> None:
        if size != len(self.current):
            _cut(self.current, size)
            self.sizes.append(size)

    def write_back(self, sector: int, sector_bytes: int) -> None:
        """Bring one sector to the disk, as far as the file reaches there."""
        start = sector * sector_bytes
        end = min(start + sector_bytes, len(self.current), len(self.stable))
        if start < end:
            self.stable[start:end] = self.current[start:end]


def _cut(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


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
        content = self._content
        failure = self._disk.failure()
        if failure is not None:  # a part may have been written
            data = data[: self._disk.choose(len(data) + 1)]
            data = data[: max(0, len(content.current) - offset)]
        end = offset + len(data)
        if end > len(content.current):
            self._disk.grow(end - len(content.current))
            content.resize(end)
        content.current[offset:end] = data
        sector = self._disk.sector_bytes
        content.dirty.update(range(offset // sector, -(-end // sector)))
        if failure is not None:
            raise failure

    def sync(self) -> None:
        content = self._content
        failure = self._disk.failure()
        if failure is not None:
            for sector in sorted(content.dirty):
                if self._disk.choose(2):
                    content.write_back(sector, self._disk.sector_bytes)
            content.dirty.clear()
            raise failure
        _cut(content.stable, len(content.current))
        for sector in content.dirty:
            content.write_back(sector, self._disk.sector_bytes)
        content.dirty.clear()
        content.sizes.clear()

    def allocate(self, size: int) -> None:
        self._disk.step()
        more = size - len(self._content.current)
        if more > 0:
            self._disk.grow(more)
            self._content.resize(size)

    def truncate(self, size: int) -> None:
        self._disk.step()
        self._content.resize(size)

    def close(self) -> None:
        pass


class SimulatedDisk:
    """One folder. `fail` maps the number of a call to the errno with which it fails."""

    location = "simulated"

    def __init__(
        self,
        capacity: int = 1 << 40,
        sector_bytes: int = 512,
        choose: Choose = lambda limit: 0,
    ) -> None:
        self.capacity = capacity
        self.sector_bytes = sector_bytes
        self.choose = choose
        self.fail: dict[int, int] = {}
        self.calls = 0
        self._names: dict[str, _Content] = {}
        self._stable_names: dict[str, _Content] = {}
        self._renames: list[tuple[str, str]] = []  # since the last sync of the names

    # --- what the log uses ---

    def names(self) -> list[str]:
        return sorted(self._names)

    def open(self, name: str, *, create: bool = False, write: bool = True) -> SimulatedFile:
        if create:
            self.step()
            if name in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            self._names[name] = _Content()
        elif name not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return SimulatedFile(self, self._names[name])

    def remove(self, name: str) -> None:
        failure = self.failure()
        if failure is None or self.choose(2):
            del self._names[name]
        if failure is not None:
            raise failure

    def rename(self, name: str, to: str) -> None:
        failure = self.failure()
        if failure is None or self.choose(2):
            self._names[to] = self._names.pop(name)
            self._renames.append((name, to))
        if failure is not None:
            raise failure

    def sync(self) -> None:
        failure = self.failure()
        if failure is None or self.choose(2):
            self._stable_names = dict(self._names)
            self._renames.clear()
        if failure is not None:
            raise failure

    # --- what tests use ---

    @property
    def used(self) -> int:
        return sum(len(content.current) for content in self._names.values())

    def failure(self) -> OSError | None:
        """Count a call; return the error with which it fails, if it does."""
        self.calls += 1
        code = self.fail.pop(self.calls, None)
        return None if code is None else OSError(code, os.strerror(code))

    def step(self) -> None:
        failure = self.failure()
        if failure is not None:
            raise failure

    def grow(self, more: int) -> None:
        if self.used + more > self.capacity:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def content(self, name: str) -> bytearray:
        return self._names[name].current

    def add(self, name: str, data: bytes) -> None:
        """Put a file there, as an operator would."""
        self._names[name] = _Content(bytearray(data), bytearray(data))
        self._stable_names[name] = self._names[name]

    def crash(self) -> None:
        """Lose power: of what was not synced, any part may have reached the disk."""
        names = dict(self._stable_names)
        renamed: set[str] = set()
        for name, to in self._renames:  # both names change together, or neither does
            renamed |= {name, to}
            if self.choose(2) and name in names:
                names[to] = names.pop(name)
        self._renames.clear()
        for name in sorted((self._names.keys() | names.keys()) - renamed):
            if self._names.get(name) is not names.get(name) and self.choose(2):
                if name in self._names:
                    names[name] = self._names[name]
                else:
                    del names[name]
        for content in names.values():
            if content.sizes and (chosen := self.choose(len(content.sizes) + 1)):
                # What the file lost before it grew again is zeros now.
                _cut(content.stable, min([len(content.stable), *content.sizes[:chosen]]))
                _cut(content.stable, content.sizes[chosen - 1])
            for sector in sorted(content.dirty):
                if self.choose(2):
                    content.write_back(sector, self.sector_bytes)
            content.current = bytearray(content.stable)
            content.dirty.clear()
            content.sizes.clear()
        self._names = names
        self._stable_names = dict(names)
