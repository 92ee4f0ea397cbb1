"""The participants of a pod: which are configured, which are present, and what each may use."""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Final, Literal

from mcpp.filters import Filter, everything
from mcpp_gateway.core.hearing.filter_counts import FilterCounts
from mcpp_gateway.core.hearing.rights import Rights
from mcpp_gateway.core.joining.absent_grants import AbsentGrants
from mcpp_gateway.core.joining.cards import Cards
from mcpp_gateway.core.joining.grants import GrantedSettings, have_equal_rights
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.rates import Bucket, Rate
from mcpp_gateway.core.records import OwnerState
from mcpp_gateway.core.sessions import Member, ParticipantSettings, Session

# Every join is broadcast, and reads the log to count what it will replay. So a participant may join
# this often, and what the pod reads for it counts as parts of joins: see `reading_cost`.
_JOINS_PER_SECOND: Final = 10
_JOIN_BURST: Final = 100
# While a replay is being prepared, a participant with several connections may open a few more.
_OPENING_AT_ONCE: Final = 4
_OPENING_SECONDS: Final = 1.0
# Of participants that have left together, 0.1 ms each: more than can join in a second.
_PACKED_AT_ONCE: Final = 1_000
# Of one issuer in a pod. They take 200 bytes each, and 50 ns of every second.
MAX_NAMES: Final = 50_000


class Members:
    """The participants of one pod. Owns their settings, buckets and counts of what they use."""

    def __init__(self, settings: Iterable[ParticipantSettings], limits: PodLimits) -> None:
        self.present: dict[str, Member] = {}  # in the order in which they joined
        self.sessions = 0
        self.filter_counts = FilterCounts(limits)
        self._limits = limits
        self._settings = {each.id: each for each in settings}
        self.cards = Cards()
        # Names that signed tokens use; those of `_settings` that they brought have a grant, too.
        self._owners: dict[str, OwnerState] = {}
        self._granted: dict[str, GrantedSettings] = {}  # of the token that joined last
        self._absent = AbsentGrants()  # the same, of those that are not in `_settings`
        # Buckets outlive sessions, or a reconnection would fill them.
        self._buckets: dict[str, Bucket] = {}
        self._joins: dict[str, Bucket] = {}

    # --- settings -------------------------------------------------------------------------------

    def configure(self, settings: Iterable[ParticipantSettings], now: float) -> None:
        """Replace the settings. Those of signed tokens stay, but for ids that are configured now.

        Buckets of participants that are still known stay.
        """
        configured = {each.id: each for each in settings}
        for id in self._owners.keys() & configured.keys():
            self._forget_owner(id)
        granted = {id: granted.settings for id, granted in self._granted.items()}
        self._settings = configured | granted
        self._update_buckets(now)

    def change_limits(self, limits: PodLimits, now: float) -> None:
        """Apply new limits of the pod."""
        self._limits = limits
        self.filter_counts.change_limits(limits)
        self._update_buckets(now)

    def owner(self, participant: str) -> str | None:
        """Return the issuer whose token named a participant; None if it is configured or new."""
        owner = self._owners.get(participant)
        return None if owner is None else owner.issuer

    def owners(self, participants: Iterable[str] | None = None) -> tuple[OwnerState, ...]:
        """Return the issuers whose tokens named these participants, or any."""
        ids = self._owners if participants is None else dict.fromkeys(participants)
        return tuple(self._owners[id] for id in ids if id in self._owners)

    def restore_owners(self, owners: Iterable[OwnerState]) -> None:
        """Take from a log which issuers use which names. A configured name stays configured."""
        self._owners.update(
            (owner.participant, owner)
            for owner in owners
            if owner.participant not in self._settings
        )

    def joined_kinds(self, name: str) -> set[Literal["participant", "token"]]:
        """Return what a name is of signed tokens that have joined: of a participant, or an id."""
        kinds: set[Literal["participant", "token"]] = set()
        if name in self._owners:
            kinds.add("participant")
        ids = {each.token_id for each in self._granted.values()}
        if name in ids or any(each.token_id == name for each in self._absent.values()):
            kinds.add("token")
        return kinds

    def granted(self, participant: str) -> GrantedSettings | None:
        """Return what the last token of a participant admits; None if it has not joined by one."""
        self._unpack(participant)
        return self._granted.get(participant)

    def grant_refusal(self, participant: str, issuer: str) -> str | None:
        """Return why an issuer's token may not stand for a participant; None if it may (S-04)."""
        if self.is_configured(participant):
            return "the participant is configured with another token"
        if self.owner(participant) not in (None, issuer):
            return "the participant belongs to another issuer"
        return None

    def has_joined_with(self, granted: GrantedSettings) -> bool:
        """Return whether a participant's rights are those of a token, or of another in use (S-01).

        Those of one that is not present may be left over from a token that has ended.
        """
        id = granted.settings.id
        known = self.granted(id)
        return known is not None and (id in self.present or have_equal_rights(known, granted))

    def known(self) -> Sequence[str]:
        """Return the ids of all participants that are configured or have signed tokens."""
        return (*self._settings, *self._absent)

    def knows(self, participant: str) -> bool:
        """Return whether a participant is configured, or has the rights of a signed token."""
        return participant in self._settings or participant in self._absent

    def is_configured(self, participant: str) -> bool:
        """Return whether a participant is known from the configuration."""
        return participant in self._settings and participant not in self._owners

    def grant(self, granted: GrantedSettings, now: float) -> None:
        """Add a participant for as long as its token is valid, or change its settings."""
        settings, until = granted.settings, granted.until
        id = settings.id
        known = self._owners.pop(id, None)  # the one that joined last is the last
        if known is not None:
            until = max(known.until, until)
        self._owners[id] = OwnerState(id, granted.issuer, until)
        self._absent.remove(id)
        self._granted[id] = granted
        self._settings[id] = settings
        self._update_buckets(now, [id])

    def forget_owners(self, wall_time: float, issuers: Container[str]) -> None:
        """Forget participants whose tokens have expired, or whose issuer is gone, if not present.

        So are the oldest of an issuer with too many. Of the other absent ones little is kept
        (S-15). Tokens expire by `wall_time`, the system's clock (S-07).
        """
        ended = [
            id
            for id, owner in self._owners.items()
            if (owner.until <= wall_time or owner.issuer not in issuers) and id not in self.present
        ]
        gone = dict.fromkeys((*ended, *self._surplus()))
        for id in gone:
            self._forget_owner(id)
            self._settings.pop(id, None)
        absent = [id for id in self._granted if id not in self.present]
        for id in absent[:_PACKED_AT_ONCE]:
            del self._settings[id]
            self._absent.add(self._granted.pop(id))
        if gone or absent:
            self._drop_unknown()

    def _surplus(self) -> Iterator[str]:
        """Yield absent participants of issuers that use too many names, the oldest first."""
        if len(self._owners) <= MAX_NAMES:
            return
        names = Counter(owner.issuer for owner in self._owners.values())
        for id, owner in list(self._owners.items()):
            if names[owner.issuer] > MAX_NAMES and id not in self.present:
                names[owner.issuer] -= 1
                yield id

    def _forget_owner(self, participant: str) -> None:
        """Forget that signed tokens use a name, and what they admit."""
        del self._owners[participant]
        self._granted.pop(participant, None)
        self._absent.remove(participant)

    def _unpack(self, participant: str) -> None:
        """Have the settings of a participant ready that signed tokens name, until it is absent."""
        granted = self._absent.take(participant)
        if granted is not None:
            self._granted[participant] = granted
            self._settings[participant] = granted.settings

    def limits(self, participant: str) -> PodLimits:
        """Return the limits of the pod as they are for a participant."""
        settings = self._settings.get(participant) or self._absent.get(participant)
        return self._limits if settings is None else settings.limits_in(self._limits)

    def caps(self) -> dict[str, int]:
        """Return how many contexts those may hold whose limits say so."""
        return {
            id: self.limits(id).max_contexts_per_participant
            for known in (self._settings, self._absent)
            for id, each in known.items()
            if each.limits.max_contexts_per_participant is not None
            or each.at_most.max_contexts_per_participant is not None
        }

    def _update_buckets(self, now: float, ids: Iterable[str] | None = None) -> None:
        """Apply the rates to the buckets of these participants; of all, drop those not known."""
        if ids is None:
            self._drop_unknown()
        for buckets, rate in ((self._buckets, _rate), (self._joins, _join_rate)):
            for id in buckets if ids is None else buckets.keys() & set(ids):
                buckets[id].change(rate(self.limits(id)), now)

    def _drop_unknown(self) -> None:
        """Drop the buckets and cards of participants that are not known."""
        known = set(self.known())
        for buckets in (self._buckets, self._joins):
            for id in buckets.keys() - known:
                del buckets[id]
        self.cards.keep(known)

    def settings(self, participant: str) -> ParticipantSettings | None:
        """Return the settings of a participant; None if it is not configured."""
        self._unpack(participant)
        return self._settings.get(participant)

    @property
    def has_persons(self) -> bool:
        """Whether one of the configured participants is a person."""
        kept = self._absent.values()
        return any(each.person for each in kept) or any(
            settings.person for settings in self._settings.values()
        )

    def is_person(self, participant: str) -> bool:
        """Return whether a participant is configured as a person."""
        settings = self._settings.get(participant) or self._absent.get(participant)
        return settings is not None and settings.person

    def rights(self, participant: str) -> Rights:
        """Return what a participant may hear of the log (H-06)."""
        settings = self.settings(participant)
        return Rights(participant, everything if settings is None else settings.hears)

    def bucket(self, participant: str) -> Bucket | None:
        """Return the bucket of a participant, which stays the same while it is configured."""
        return self._buckets.get(participant)

    # --- presence and sessions ------------------------------------------------------------------

    def new(self, participant: str) -> Member:
        """Return a member that is not present yet."""
        settings = self.settings(participant) or ParticipantSettings.unknown(participant)
        bucket = self._buckets.get(participant)
        if bucket is None:
            bucket = self._buckets[participant] = Bucket(_rate(self.limits(participant)))
        return Member(settings, bucket, card=self.cards.digest(participant))

    def add(self, participant: str) -> Member:
        """Let a participant be present."""
        member = self.present[participant] = self.new(participant)
        return member

    def drop_unknown_cards(self) -> None:
        """Forget the cards of participants that are not configured."""
        self.cards.keep(self.known())

    def show_card(self, participant: str, *others: Member) -> None:
        """Take note that a participant has another card, where welcomes and presence show it."""
        for member in (self.present.get(participant), *others):
            if member is not None:
                member.card = self.cards.digest(participant)
                member.update(member.settings)

    def attach(self, session: Session) -> None:
        """Count a new session of a member, and its filter."""
        session.member.sessions.append(session)
        self.sessions += 1
        self.filter_counts.add(session.member.settings.id, session.wanted)

    def detach(self, session: Session) -> None:
        """Stop counting a session that is no longer one of its member's."""
        self.sessions -= 1
        self.filter_counts.remove(session.member.settings.id, session.wanted)

    # --- limits ---------------------------------------------------------------------------------

    def join_refusal(self, participant: str, filter: Filter) -> str | None:
        """Return why a participant cannot have one more connection with this filter (G-66)."""
        member = self.present.get(participant)
        sessions = () if member is None else member.sessions
        previous = everything
        if sessions and not self._settings[participant].multiple:
            previous = sessions[0].wanted  # it replaces its connection
        elif len(sessions) >= self.limits(participant).max_connections_per_participant:
            return "too many connections of this participant (max_connections_per_participant)"
        elif self.sessions >= self._limits.max_connections_per_pod:
            return "too many connections in this pod (max_connections_per_pod)"
        if not self.filter_counts.allow(participant, filter, previous):
            return "too many different filters (max_filters_per_participant, max_filters_per_pod)"
        return None

    def join_wait(self, participant: str, now: float) -> float:
        """Return the seconds until a participant may join again, 0 if it may now (G-49)."""
        bucket = self._joins.get(participant)
        wait = 0.0 if bucket is None else bucket.wait(now)
        member = self.present.get(participant)
        if not wait and member is not None and member.settings.multiple:
            opening = sum(session.opening is not None for session in member.sessions)
            return _OPENING_SECONDS if opening >= _OPENING_AT_ONCE else 0.0
        return wait

    def charge_join(self, participant: str, joins: float, now: float) -> None:
        """Charge a participant for a join, or for a part of one (G-49)."""
        bucket = self._joins.get(participant)
        if bucket is None:
            bucket = self._joins[participant] = Bucket(_join_rate(self.limits(participant)))
        bucket.charge(joins, now)


def _rate(limits: PodLimits) -> Rate:
    return Rate.per_second(limits.messages_per_second, limits.burst)


def _join_rate(limits: PodLimits) -> Rate:
    """Return how often one may join: the more often, the more messages it may send (G-49)."""
    messages = limits.messages_per_second
    joins = messages and max(_JOINS_PER_SECOND, messages / 20)
    return Rate.per_second(joins, max(_JOIN_BURST, limits.burst // 4))
