"""The roster: the sessions of all gateways, and which participants are present because of them.

It follows from the log alone, as everything that deciding needs. So a new leader knows at once
whose sessions there are, and a failover is no storm of leaves and joins. A participant whose
gateway is gone stays present for `rejoin_seconds`, to come back at another one.
"""

from collections.abc import Iterable

from mcpp_gateway.core.cluster.records import SessionState

SessionKey = tuple[str, int]  # incarnation of the gateway, number of the session there


class ClusterRoster:
    """Sessions and presence as of one position of the log."""

    def __init__(self) -> None:
        self.present: dict[str, None] = {}  # in the order in which they joined
        self.absent: dict[str, float] = {}  # present without a session, since when
        self._sessions: dict[SessionKey, str] = {}
        self._indexes: dict[SessionKey, int] = {}  # of the batches with which they joined
        self._of: dict[str, dict[SessionKey, None]] = {}  # of each participant
        self._at: dict[str, dict[SessionKey, None]] = {}  # at each incarnation of a gateway

    def copy(self) -> "ClusterRoster":
        """Return an independent roster with the same content."""
        other = ClusterRoster()
        other.restore(self.present, self.snapshot(), self.absent)
        return other

    def restore(
        self,
        present: Iterable[str],
        sessions: Iterable[SessionState],
        absent: dict[str, float],
    ) -> None:
        """Fill an empty roster."""
        self.present = dict.fromkeys(present)
        self.absent = dict(absent)
        for each in sessions:
            self._insert((each.origin, each.number), each.participant, each.index)

    def snapshot(self) -> tuple[SessionState, ...]:
        """Return all sessions, oldest first."""
        return tuple(
            SessionState(*key, participant, self._indexes[key])
            for key, participant in self._sessions.items()
        )

    def add(self, key: SessionKey, participant: str, index: int) -> None:
        """Add a session of a participant that is present, which joins with a batch."""
        self._insert(key, participant, index)
        self.absent.pop(participant, None)

    def remove(self, key: SessionKey) -> str | None:
        """Remove a session; return its participant if that has no other."""
        participant = self._sessions.pop(key, None)
        if participant is None:
            return None
        del self._indexes[key]
        del self._at[key[0]][key]
        if not self._at[key[0]]:
            del self._at[key[0]]
        del self._of[participant][key]
        if self._of[participant]:
            return None
        del self._of[participant]
        return participant

    def remove_gateway(self, origin: str, now: float) -> None:
        """Remove all sessions of a gateway. Their participants stay present for a while."""
        for key in list(self._at.get(origin, ())):
            participant = self.remove(key)
            if participant is not None and participant in self.present:
                self.absent[participant] = now

    def leave(self, participant: str) -> None:
        """Take note that a participant is not present any more."""
        self.present.pop(participant, None)
        self.absent.pop(participant, None)

    def participant(self, key: SessionKey) -> str | None:
        """Return the participant of a session."""
        return self._sessions.get(key)

    def sessions_of(self, participant: str) -> tuple[SessionKey, ...]:
        """Return the sessions of a participant."""
        return tuple(self._of.get(participant, ()))

    def index(self, key: SessionKey) -> int:
        """Return the index of the batch with which a session joined."""
        return self._indexes[key]

    def _insert(self, key: SessionKey, participant: str, index: int) -> None:
        self._sessions[key] = participant
        self._indexes[key] = index
        self._of.setdefault(participant, {})[key] = None
        self._at.setdefault(key[0], {})[key] = None
