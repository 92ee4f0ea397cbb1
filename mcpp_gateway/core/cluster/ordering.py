"""Ordering: records by their sequence numbers, whatever order they arrive in and however often."""

from collections.abc import Iterator
from typing import Final
from zlib import crc32

# Records that are kept while one before them is missing. What is beyond is asked for again.
_MAX_EARLY: Final = 4096
# Records that are recognised when they come again. A log that has lost its end passes these places
# once more before it reaches one that is new here.
_RECOGNISED: Final = 4096


class Ordering:
    """Puts records in the order of the log. Owns those that came too early."""

    def __init__(self, next: int) -> None:
        self.next = next  # sequence number of the record that comes next
        self.known = next - 1  # the highest sequence number that is known to exist
        self._early: dict[int, bytes] = {}
        self._checksums: dict[int, tuple[int, int]] = {}  # the last ones, by their place in a ring

    @property
    def is_missing(self) -> bool:
        """Whether a record is known to exist that has not arrived, or not in its turn."""
        return self.known >= self.next

    def expect(self, sequence: int) -> None:
        """Take note that a record exists."""
        self.known = max(self.known, sequence)

    def add(self, sequence: int, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Take a record; yield those whose turn has come."""
        self.expect(sequence)
        if sequence > self.next:
            if sequence not in self._early and len(self._early) < _MAX_EARLY:
                self._early[sequence] = data
            return
        if sequence < self.next:
            return
        yield self._pass(data)
        yield from self._pass_early()

    def is_repeat(self, sequence: int, data: bytes) -> bool | None:
        """Return whether the record that was taken at a place is this one; None: not known."""
        known = self._checksums.get(sequence % _RECOGNISED)
        return None if known is None or known[0] != sequence else known[1] == crc32(data)

    def skip(self, sequence: int) -> Iterator[tuple[int, bytes]]:
        """Go on at a sequence number: the records before it are not stored any more."""
        for each in [each for each in self._early if each < sequence]:
            del self._early[each]
        self.next = max(self.next, sequence)
        yield from self._pass_early()

    def _pass_early(self) -> Iterator[tuple[int, bytes]]:
        while self._early and (early := self._early.pop(self.next, None)) is not None:
            yield self._pass(early)

    def _pass(self, data: bytes) -> tuple[int, bytes]:
        sequence = self.next
        self.next += 1
        self._checksums[sequence % _RECOGNISED] = sequence, crc32(data)
        return sequence, data
