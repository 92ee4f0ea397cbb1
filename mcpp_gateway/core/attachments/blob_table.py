"""The blobs of a pod: who uploaded them, which envelopes name them, and who may read them.

A participant may read a blob that it has uploaded, or that an envelope names which it may hear. An
envelope that names a blob its sender may not read is refused, so every envelope of the log that
names one is a permission: there is no other record of permissions that could disagree (A-06).

A blob is kept while an envelope of the log names it, and for a while after each upload. Both are
ordered: by the position of the last naming and by the time of the last upload, so that looking for
what has expired costs nothing while there is nothing.

An attachment may be private: then the envelope is a permission only for its sender and for those
that it addresses, which may hear it whatever their filters (F-09). Public and private namings are
kept apart, so that one kind may end before the other (A-13).

Those of calls are kept apart from both: arguments and results are fetched when they arrive, so they
are kept for minutes and not as long as the log. Otherwise a participant that answers in private
would use up its room, and each answer that another participant names would stay (A-15).
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from mcpp import kinds
from mcpp.protocol.envelope import Attachment
from mcpp_gateway.core.attachments.namings import Namings
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.records import LogEntry, NamedState, State

# What a blob counts for at least: as a file, and here.
_LEAST_BYTES: Final = 4096

# How long the private attachments of requests and responses are kept.
CALL_SECONDS: Final = 600.0
_CALLS: Final = (f"{kinds.REQUEST}:", f"{kinds.RESPONSE}:")


class Blob(msgspec.Struct):
    """A blob that the gateway has: its size, and the times at which participants uploaded it."""

    size: int
    uploads: dict[str, float]


class QuotaError(Exception):
    """An upload does not fit into what a participant or its pod may keep."""


class BlobTable:
    """The blobs of one pod. Owns what is known about them, and what uploads have reserved."""

    def __init__(self, limits: Callable[[str], PodLimits]) -> None:
        self._limits = limits  # of a participant
        self._blobs: dict[str, Blob] = {}
        self._fresh: dict[str, float] = {}  # until when they are kept without a name, in order
        self._public = Namings()
        self._private = Namings()
        self._calls = Namings()  # private ones of requests and responses
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
        if not entry.private:
            self._public.add(entry.attachments, entry, position)
            return
        self._public.add(entry.public_attachments, entry, position)
        if not entry.kind.startswith(_CALLS):
            self._private.add(entry.private, entry, position)
            return
        self._calls.add(entry.private, entry, position)
        for hash in entry.private:
            blob = self._blobs.get(hash)
            if blob is not None and blob.uploads.keys() == {entry.sender}:
                self._fresh.pop(hash, None)  # it was uploaded for this call

    def restore(self, state: State) -> None:
        """Begin with the namings of a state."""
        self._public.restore(state.named)
        calls = [each for each in state.named_privately if _is_of_calls(each)]
        self._private.restore(each for each in state.named_privately if not _is_of_calls(each))
        self._calls.restore(calls)

    def snapshot(self) -> tuple[tuple[NamedState, ...], tuple[NamedState, ...]]:
        """Return the public and the private namings, oldest first."""
        return self._public.snapshot(), self._private.snapshot() + self._calls.snapshot()

    # --- access ---------------------------------------------------------------------------------

    def readable_size(self, rights: Rights, hash: str, committed: int) -> int | None:
        """Return the size of a blob that a participant may read; None if there is none for it.

        Only what is before the position `committed` counts: nothing follows from an envelope that
        the log may still lose (G-50).
        """
        size = self._lasting_size(rights, hash, committed)
        if size is not None:
            return size
        blob = self._blobs.get(hash)
        if blob is not None and any(map(rights.is_own, self._calls.entries(hash, committed))):
            return blob.size
        return None

    def unreadable(
        self, rights: Rights, attachments: Sequence[Attachment], committed: int
    ) -> Attachment | None:
        """Return the first attachment that a sender may not name: unknown, or of another size.

        Those of calls are for the call only: named again, they would be kept (A-15).
        """
        for each in attachments:
            if self._lasting_size(rights, each.hash, committed) != each.size:
                return each
        return None

    def _lasting_size(self, rights: Rights, hash: str, committed: int) -> int | None:
        blob = self._blobs.get(hash)
        if blob is None:
            return None
        if rights.participant in blob.uploads:
            return blob.size
        if self._public.has_before(hash, committed):
            if not rights.restricted:
                return blob.size
            for entry in self._public.entries(hash, committed):
                if rights.view(entry) is not None:
                    return blob.size
        # No filter keeps an envelope from its sender and addressees (F-09).
        if any(map(rights.is_own, self._private.entries(hash, committed))):
            return blob.size
        return None

    # --- the end --------------------------------------------------------------------------------

    def expire(self, start: int, now: float) -> list[str]:
        """Forget what is no longer kept, and return the hashes of those blobs.

        Args:
            start: the oldest position that the log holds.
            now: the present time.
        """
        forgotten = [
            *self._public.expire(start),
            *self._private.expire(start),
            *self._calls.expire(start, now - CALL_SECONDS),
        ]
        gone = [hash for hash in forgotten if hash not in self._fresh and not self._is_named(hash)]
        while self._fresh and (hash := next(iter(self._fresh))):
            if self._fresh[hash] > now:
                break
            del self._fresh[hash]
            if not self._is_named(hash):
                gone.append(hash)
        return [hash for hash in gone if self._remove(hash)]

    # --- private --------------------------------------------------------------------------------

    def _is_named(self, hash: str) -> bool:
        return hash in self._public or hash in self._private or hash in self._calls

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


def _is_of_calls(named: NamedState) -> bool:
    """Return whether only requests and responses name a blob, as far as is known."""
    found = [grant.kind for grant in named.grants]
    return bool(found) and all(kind.startswith(_CALLS) for kind in found)
