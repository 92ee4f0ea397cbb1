"""Where the log names blobs, and in which ways: the permissions that follow from envelopes (A-06).

For participants with `hears`, and for private attachments, what matters of the envelopes is kept:
equal ones once, the most recent up to a bound in bytes. To all others, one naming is as good as
another.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from mcpp_gateway.core.journal import entry_bytes
from mcpp_gateway.core.records import GrantState, LogEntry, NamedState

_MAX_GRANT_BYTES: Final = 16_777_216
_MAX_GRANTS: Final = 256  # of one blob

# What filters ask about: sender, to, kind, and the context's id, type and ancestors.
_Key: TypeAlias = tuple[object, ...]


class _BlobGrant(msgspec.Struct):
    """Equal namings of a blob: an entry without id, text and time, and where it is in the log."""

    entry: LogEntry
    first: int
    last: int
    time: float


class _Naming(msgspec.Struct):
    """Where the log names a blob."""

    first: int
    last: int
    time: float  # of the last one
    grants: dict[_Key, _BlobGrant]  # in the order of their last naming


class Namings:
    """The blobs that envelopes of the log name, by hash, in the order of the last naming."""

    def __init__(self) -> None:
        self._named: dict[str, _Naming] = {}
        self._grant_bytes = 0
        self._start = 0  # the oldest position that the log holds
        self._before = -math.inf  # the time up to which namings are forgotten

    def __contains__(self, hash: str) -> bool:
        return hash in self._named

    def has_before(self, hash: str, committed: int) -> bool:
        """Return whether an entry before a position names a blob."""
        naming = self._named.get(hash)
        return naming is not None and naming.first < committed

    def entries(self, hash: str, committed: int) -> Iterator[LogEntry]:
        """Yield what is known of the entries that name a blob, of those before a position."""
        naming = self._named.get(hash)
        for grant in () if naming is None else naming.grants.values():
            is_kept = grant.last >= self._start and grant.time > self._before
            if is_kept and grant.first < committed:
                yield grant.entry

    def add(self, hashes: Iterable[str], entry: LogEntry, position: int) -> None:
        """Take note that an entry of the log names blobs."""
        said = LogEntry("", entry.sender, entry.to, entry.kind, entry.lineage, b"")
        key = _key(said)
        for hash in hashes:
            naming = self._named.pop(hash, None)
            if naming is None:
                naming = _Naming(position, position, entry.time, {})
            naming.last, naming.time = position, entry.time
            self._named[hash] = naming
            grant = naming.grants.pop(key, None)
            if grant is None:
                grant = _BlobGrant(said, position, position, entry.time)
                self._grant_bytes += entry_bytes(said)
            grant.last, grant.time = position, entry.time
            naming.grants[key] = grant
            if len(naming.grants) > _MAX_GRANTS:
                self._forget_grant(naming)
        self._bound_grants()

    def restore(self, named: Iterable[NamedState]) -> None:
        """Begin with the namings of a state, oldest first."""
        self._named.clear()
        self._grant_bytes = 0
        for each in named:
            naming = self._named[each.hash] = _Naming(each.first, each.last, each.time, {})
            for grant in each.grants:
                entry = grant.entry()
                naming.grants[_key(entry)] = _BlobGrant(entry, grant.first, grant.last, grant.time)
                self._grant_bytes += entry_bytes(entry)

    def snapshot(self) -> tuple[NamedState, ...]:
        """Return the namings, oldest first."""
        return tuple(
            NamedState(
                hash,
                each.first,
                each.last,
                each.time,
                tuple(
                    [
                        GrantState.of(grant.entry, grant.first, grant.last, grant.time)
                        for grant in each.grants.values()
                    ]
                ),
            )
            for hash, each in self._named.items()
        )

    def expire(self, start: int, before: float = -math.inf) -> Iterator[str]:
        """Forget the blobs that no entry from a position on names, and yield their hashes.

        Those that no entry since a time names are forgotten, too.
        """
        self._start, self._before = start, before
        while self._named and (hash := next(iter(self._named))):
            if self._named[hash].last >= start and self._named[hash].time > before:
                break
            naming = self._named.pop(hash)
            while naming.grants:
                self._forget_grant(naming)
            yield hash

    def _bound_grants(self) -> None:
        """Forget grants of the blobs that were named least recently, while there are too many."""
        if self._grant_bytes <= _MAX_GRANT_BYTES:
            return
        for naming in self._named.values():
            while naming.grants and self._grant_bytes > _MAX_GRANT_BYTES:
                self._forget_grant(naming)

    def _forget_grant(self, naming: _Naming) -> None:
        grant = naming.grants.pop(next(iter(naming.grants)))
        self._grant_bytes -= entry_bytes(grant.entry)


def _key(entry: LogEntry) -> _Key:
    # Lineages are compared by identity; two of one context that say the same are the same here.
    lineage = entry.lineage
    context = None if lineage is None else (lineage.id, lineage.type, lineage.ancestors)
    return entry.sender, entry.to, entry.kind, context
