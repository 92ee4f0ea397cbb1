"""Ordering: records by their sequence numbers, whatever order they arrive in and however often."""

from collections.abc import Iterator
from typing import Final

# Records that are kept while one before them is missing. What is beyond is asked for again.
_MAX_EARLY: Final = 4096


class Ordering:
    """Puts records in the order of the log. Owns those that came too early."""

    def __init__(self, next: int) -> None:
        self.next = next  # sequence number of the record that comes next
        self.known = next - 1  # the highest sequence number that is known to exist
        self._early: dict[int, bytes] = {}

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
        self.next += 1
        yield sequence, data
        while self._early and (early := self._early.pop(self.next, None)) is not None:
            self.next += 1
            yield self.next - 1, early

    def skip(self, sequence: int) -> Iterator[tuple[int, bytes]]:
        """Go on at a sequence number: the records before it are not stored any more."""
        for each in [each for each in self._early if each < sequence]:
            del self._early[each]
        self.next = max(self.next, sequence)
        while self._early and (early := self._early.pop(self.next, None)) is not None:
            self.next += 1
            yield self.next - 1, early
