"""Grants of participants that are not present: kept until their tokens expire, but small (S-15).

Compiled patterns take forty times the bytes of their text, and an issuer may have very many users.
"""

import zlib
from collections.abc import ItemsView, Iterator, ValuesView
from typing import Final, NamedTuple

from mcpp_gateway.core.joining.grants import GrantedSettings, decode_grant, encode_grant
from mcpp_gateway.core.limits import ParticipantLimits, PodLimits

MAX_ABSENT_BYTES: Final = 8_388_608  # of all participants of a pod
_OTHER_BYTES: Final = 512  # of a participant, beside its grant
_FASTEST: Final = 1


class AbsentGrant(NamedTuple):
    """A packed grant, with what is asked of many participants at once."""

    limits: ParticipantLimits
    at_most: ParticipantLimits
    person: bool
    token_id: str | None
    data: bytes

    def limits_in(self, limits: PodLimits) -> PodLimits:
        """Return the limits of a pod as they are for this participant."""
        return self.at_most.within(self.limits.over(limits))


class AbsentGrants:
    """The packed grants of a pod's absent participants. Owns them; the oldest are forgotten."""

    def __init__(self) -> None:
        self._kept: dict[str, AbsentGrant] = {}  # in the order in which they were added
        self._bytes = 0

    def __contains__(self, participant: str) -> bool:
        return participant in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def get(self, participant: str) -> AbsentGrant | None:
        """Return what is kept of a participant."""
        return self._kept.get(participant)

    def items(self) -> ItemsView[str, AbsentGrant]:
        """Return what is kept of each participant."""
        return self._kept.items()

    def values(self) -> ValuesView[AbsentGrant]:
        """Return what is kept, of all participants."""
        return self._kept.values()

    def add(self, granted: GrantedSettings) -> None:
        """Keep what a token admits, without the participants that no room is left for."""
        settings = granted.settings
        self.remove(settings.id)
        data = zlib.compress(encode_grant(granted), _FASTEST)
        self._kept[settings.id] = AbsentGrant(
            settings.limits, settings.at_most, settings.person, granted.token_id, data
        )
        self._bytes += _weight(data)
        while self._bytes > MAX_ABSENT_BYTES:
            self.remove(next(iter(self._kept)))

    def remove(self, participant: str) -> None:
        """Forget a participant, if it is kept."""
        kept = self._kept.pop(participant, None)
        if kept is not None:
            self._bytes -= _weight(kept.data)

    def take(self, participant: str) -> GrantedSettings | None:
        """Return a participant's grant, which is not kept here any more."""
        kept = self._kept.get(participant)
        if kept is None:
            return None
        self.remove(participant)
        return decode_grant(participant, zlib.decompress(kept.data))


def _weight(data: bytes) -> int:
    return _OTHER_BYTES + len(data)
