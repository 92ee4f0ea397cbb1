"""The blobs of a pod: who uploaded them, which envelopes name them, and who may read them.

A participant may read a blob that it has uploaded, or that an envelope names which it may hear. An
envelope that names a blob its sender may not read is refused, so every envelope of the log that
names one is a permission: there is no other record of permissions that could disagree (A-06).

A blob is kept while an envelope of the log names it, and for a while after each upload. Both are
ordered: by the position of the last naming and by the time of the last upload, so that looking for
what has expired costs nothing while there is nothing.

For participants with `hears`, what their filters ask about is kept of the namings, equal ones once,
the most recent up to a bound in bytes. To all others, one naming is as good as another.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

import msgspec

from mcpp.protocol.envelope import Attachment
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.journal import entry_bytes
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.records import GrantState, LogEntry, NamedState

# What a blob counts for at least: as a file, and here.
_LEAST_BYTES: Final = 4096
_MAX_GRANT_BYTES: Final = 16_777_216
_MAX_GRANTS: Final = 256  # of one blob


# What filters ask about: sender, to, kind, and the context's id, type and ancestors.
_Key: TypeAlias = tuple[object, ...]


class Blob(msgspec.Struct):
    """A blob that the gateway has: its size, and the times at which participants uploaded it."""

    size: int
    uploads: dict[str, float]


class _Naming(msgspec.Struct):
    """Where the log names a blob."""

    first: int
    last: int
    time: float  # of the last one
    grants: dict[_Key, "_BlobGrant"]  # in the order of their last naming


class _BlobGrant(msgspec.Struct):
    """Equal namings of a blob: an entry without id, text and time, and where it is in the log."""

    entry: LogEntry
    first: int
    last: int
    time: float


class QuotaError(Exception):
    """An upload does not fit into what a participant or its pod may keep."""


class BlobTable:
    """The blobs of one pod. Owns what is known about them, and what uploads have reserved."""

    def __init__(self, limits: Callable[[str], PodLimits]) -> None:
        self._limits = limits  # of a participant
        self._blobs: dict[str, Blob] = {}
        self._fresh: dict[str, float] = {}  # until when they are kept without a name, in order
        self._named: dict[str, _Naming] = {}  # in the order of the last naming
        self._grant_bytes = 0
        self._used: dict[str, int] = {}  # by participant, reservations included
        self.used_bytes = 0

    def __len__(self) -> int:
        return len(self._blobs)

    def __contains__(self, hash: str) -> bool:
        return hash in self._blobs

    # --- uploads --------------------------------------------------------------------------------

    def reserve(self, participant: str, size: int) -> None:
        """Count bytes of an upload that has begun. Raises QuotaError."""
        limits = self._limits(participant)
        if self._used.get(participant, 0) + size > limits.max_blob_bytes_per_participant:
            raise QuotaError(
                "this participant's blobs take too much (max_blob_bytes_per_participant)"
            )
        if self.used_bytes + size > limits.max_blob_bytes_per_pod:
            raise QuotaError("the blobs of this pod take too much (max_blob_bytes_per_pod)")
        self._charge(participant, size)
        self.used_bytes += size

    def release(self, participant: str, size: int) -> None:
        """Stop counting bytes that were reserved."""
        self._charge(participant, -size)
        self.used_bytes -= size

    def add(self, participant: str, hash: str, size: int, time: float) -> None:
        """Take note of a complete upload, which counts whatever the limits are now."""
        blob = self._blobs.get(hash)
        if blob is None:
            blob = self._blobs[hash] = Blob(size, {})
            self.used_bytes += max(size, _LEAST_BYTES)
        if participant not in blob.uploads:
            self._charge(participant, max(size, _LEAST_BYTES))
        blob.uploads[participant] = max(time, blob.uploads.get(participant, 0.0))
        until = time + self._limits(participant).blob_grace_seconds
        until = max(until, self._fresh.pop(hash, until))
        self._fresh[hash] = until

    # --- naming ---------------------------------------------------------------------------------

    def name(self, entry: LogEntry, position: int) -> None:
        """Take note that an entry of the log names blobs."""
        said = LogEntry("", entry.sender, entry.to, entry.kind, entry.lineage, b"")
        key = _key(said)
        for hash in entry.attachments:
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

    # --- access ---------------------------------------------------------------------------------

    def readable_size(self, rights: Rights, hash: str, committed: int) -> int | None:
        """Return the size of a blob that a participant may read; None if there is none for it.

        Only what is before the position `committed` counts: nothing follows from an envelope that
        the log may still lose (G-50).
        """
        blob = self._blobs.get(hash)
        if blob is None:
            return None
        if rights.participant in blob.uploads:
            return blob.size
        naming = self._named.get(hash)
        if naming is None or naming.first >= committed:
            return None
        if not rights.restricted:
            return blob.size
        may_hear = any(
            grant.first < committed and rights.view(grant.entry) is not None
            for grant in naming.grants.values()
        )
        return blob.size if may_hear else None

    def unreadable(
        self, rights: Rights, attachments: Sequence[Attachment], committed: int
    ) -> Attachment | None:
        """Return the first attachment that a sender may not name: unknown, or of another size."""
        for each in attachments:
            if self.readable_size(rights, each.hash, committed) != each.size:
                return each
        return None

    # --- the end --------------------------------------------------------------------------------

    def expire(self, start: int, now: float) -> list[str]:
        """Forget what is no longer kept, and return the hashes of those blobs.

        Args:
            start: the oldest position that the log holds.
            now: the present time.
        """
        gone = []
        while self._named and (hash := next(iter(self._named))):
            if self._named[hash].last >= start:
                break
            naming = self._named.pop(hash)
            while naming.grants:
                self._forget_grant(naming)
            if hash not in self._fresh:
                gone.append(hash)
        while self._fresh and (hash := next(iter(self._fresh))):
            if self._fresh[hash] > now:
                break
            del self._fresh[hash]
            if hash not in self._named:
                gone.append(hash)
        return [hash for hash in gone if self._remove(hash)]

    # --- private --------------------------------------------------------------------------------

    def _remove(self, hash: str) -> bool:
        blob = self._blobs.pop(hash, None)
        if blob is None:
            return False
        self.used_bytes -= max(blob.size, _LEAST_BYTES)
        for participant in blob.uploads:
            self._charge(participant, -max(blob.size, _LEAST_BYTES))
        return True

    def _charge(self, participant: str, size: int) -> None:
        used = self._used.get(participant, 0) + size
        if used:
            self._used[participant] = used
        else:
            self._used.pop(participant, None)

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
