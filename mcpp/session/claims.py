"""Claims: which participant holds which name, as a function of the log (P-55).

The first claim in the log's order holds its name until its holder releases it or leaves. A claim of
a name that another participant holds is void; one by the holder itself replaces its earlier claim,
which may be that of a process that has ended. All who read the log agree, and the position of the
claim that holds a name grows from holder to holder: it is the fencing token.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from mcpp import kinds
from mcpp.payloads import Presence
from mcpp.protocol.envelope import GATEWAY, Envelope

# Beyond this many, no more are learned (P-42): a participant's view stays bounded.
MAX_CLAIMS: Final = 10_000


@dataclass(frozen=True, slots=True)
class HeldClaim:
    """A name that a participant holds, and the id of the envelope by which it does."""

    name: str
    holder: str
    id: str


class _Release(msgspec.Struct):
    done: Any = False


_read_release: Final = msgspec.json.Decoder(_Release).decode


class ClaimRegister:
    """The claims of a pod as far as they are known. Owns `held`, by name."""

    __slots__ = ("_done", "_records", "changes", "held")

    def __init__(self, envelopes: Iterable[Envelope] = ()) -> None:
        self.held: dict[str, HeldClaim] = {}
        self.changes = 0  # how often something has changed so far
        self._done: dict[str, None] = {}  # names that were released as done, the oldest first
        self._records: list[list[Envelope]] = []
        for envelope in envelopes:
            self.receive(envelope)

    def receive(self, envelope: Envelope) -> None:
        """Process the next envelope of the log."""
        for record in self._records:
            record.append(envelope)
        family, _, name = envelope.kind.partition(":")
        if family == kinds.CLAIM and name:
            self._claim(HeldClaim(name, envelope.sender, envelope.id))
        elif family == kinds.RELEASE and name:
            self._release(name, envelope)
        elif envelope.kind == kinds.PRESENCE and envelope.sender == GATEWAY:
            for entry in envelope.payload_as(Presence).each():
                if entry.event == "leave":
                    self.leave(entry.participant.id)

    @contextmanager
    def recording(self) -> Iterator[list[Envelope]]:
        """Record what is received during the block: what is read of the past precedes it."""
        record: list[Envelope] = []
        self._records.append(record)
        try:
            yield record
        finally:
            self._records = [each for each in self._records if each is not record]

    def leave(self, participant: str) -> None:
        """Process that a participant has left."""
        for claim in [each for each in self.held.values() if each.holder == participant]:
            self._end(claim)

    def is_done(self, name: str) -> bool:
        """Return whether a name was released as done."""
        return name in self._done

    def correct(self, name: str, claim: HeldClaim | None, *, is_done: bool) -> None:
        """Replace what is known of a name by what the log says."""
        if claim is None:
            self.held.pop(name, None)
        else:
            self.held[name] = claim
        if is_done:
            self._keep_done(name)
        self.changes += 1

    def clear(self) -> None:
        """Forget everything, because envelopes may be missing."""
        self.held.clear()
        self.changes += 1

    def _claim(self, claim: HeldClaim) -> None:
        known = self.held.get(claim.name)
        if known is not None and known.holder != claim.holder:
            return
        if known is not None or len(self.held) < MAX_CLAIMS:
            self.held[claim.name] = claim
            self.changes += 1

    def _release(self, name: str, envelope: Envelope) -> None:
        known = self.held.get(name)
        if known is None or known.id != envelope.correlation_id or known.holder != envelope.sender:
            return
        self._end(known)
        if _is_done(envelope):
            self._keep_done(name)

    def _end(self, claim: HeldClaim) -> None:
        del self.held[claim.name]
        self.changes += 1

    def _keep_done(self, name: str) -> None:
        self._done[name] = None
        if len(self._done) > MAX_CLAIMS:
            del self._done[next(iter(self._done))]


def _is_done(release: Envelope) -> bool:
    try:
        return _read_release(release.raw_payload).done is True
    except msgspec.MsgspecError:
        return False
