"""The pod: texts and times in, effects out. It knows no socket, no clock and no asyncio.

Every rule of the gateway is here or in what this module holds: roster, context tree, limits,
filters, duplicates and history. Participants are configured; sessions are their connections. The
sessions that share a filter form an audience, and get the same bytes.

A session begins behind: it reads the log with `catch_up` until it has met its end, and only then
takes its place in an audience. So a long absence never fills an outbox.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Raw

from mcpp import kinds
from mcpp.capabilities import Capabilities
from mcpp.codec import decode, decode_unambiguous
from mcpp.envelope import PROTOCOL, Envelope
from mcpp.errors import DecodeError, FilterError
from mcpp.filters import Filter, everything, parse
from mcpp_gateway import refusals
from mcpp_gateway.effects import (
    FELL_BEHIND,
    REPLACED,
    REVOKED,
    SLOW_READER,
    Broadcast,
    Close,
    Direct,
    Effect,
    Move,
)
from mcpp_gateway.limits import Limits
from mcpp_gateway.log import Entry, Log, MemoryLog
from mcpp_gateway.rates import Bucket, Rate
from mcpp_gateway.refusals import Refusal
from mcpp_gateway.tree import ContextTree, Node

GATEWAY: Final = "system:gateway"
MAX_WELCOME_BYTES: Final = 262_144
_REMEMBERED_ROUTES: Final = 4096
_READ_AT_ONCE: Final = 256
# What reading an entry counts for that is not sent: filters take their time too.
_UNSENT_BYTES: Final = 256
# G-47: longer lists of recipients are searched as sets, and no route is remembered for them.
_SHORT_LIST: Final = 8

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Standing:
    """A configured participant: who it is and what it may do."""

    id: str
    capabilities: Capabilities
    multiple: bool = False


@dataclass(slots=True, eq=False)
class Audience:
    """The live sessions that share a filter. `frames` is what this tick owes to all of them."""

    filter: Filter
    sessions: set["Session"] = field(default_factory=set)
    frames: list[bytes] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Member:
    """A participant that is present, with all of its sessions."""

    standing: Standing
    bucket: Bucket
    info: Raw
    sessions: list["Session"] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Session:
    """One connection's place in the pod.

    Behind, it has a position in the log and keeps the direct texts that belong further on. Live, it
    has an audience. `peer` is the hub's: the pod carries it and never looks at it.
    """

    member: Member
    filter: Filter
    peer: Any = None
    position: int = 0
    audience: Audience | None = None
    waiting: deque[tuple[int, bytes, Filter | None]] | None = None
    waiting_bytes: int = 0
    limited: int = 0  # texts refused for the rate; the hub's to look at and to reset


class Pod:
    """One pod. Owns roster, contexts, log and audiences; performs nothing itself."""

    def __init__(
        self,
        name: str,
        standings: Iterable[Standing],
        limits: Limits,
        *,
        new_id: Callable[[], str],
        log: Log | None = None,
    ) -> None:
        self.name = name
        self.epoch = new_id()
        self.log: Log = log or MemoryLog(limits.history_messages, limits.history_bytes)
        self.tree = ContextTree(limits)
        self.limits = limits
        self.refused: dict[str, int] = {}
        self.expired = 0
        self._new_id = new_id
        self._rate = Rate.per_second(limits.messages_per_second, limits.burst)
        self._standings = {standing.id: standing for standing in standings}
        # Buckets outlive sessions, or a reconnection would be a full one.
        self._buckets: dict[str, Bucket] = {}
        self._members: dict[str, Member] = {}
        self._audiences: dict[bytes, Audience] = {}
        self._all: tuple[Audience, ...] = ()
        self._routes: dict[tuple[object, ...], tuple[Audience, ...]] = {}

    @property
    def participants(self) -> Sequence[str]:
        """The ids of those present, in the order in which they joined."""
        return tuple(self._members)

    # --- joining and leaving --------------------------------------------------------------------

    def join(
        self,
        participant: str,
        now: float,
        *,
        filter: Filter = everything,
        after: str | None = None,
        last: int | None = None,
        peer: Any = None,
    ) -> tuple[Session, list[Effect]]:
        """Let a configured participant in. Its session begins with the welcome, then `catch_up`."""
        standing = self._standings[participant]
        effects: list[Effect] = []
        member = self._members.get(participant)
        if member is None:
            member = self._arrive(standing)
            effects.append(self._presence("join", member, now))
        elif not standing.multiple:
            for old in member.sessions:
                self._detach(old)
                effects.append(Close(old, REPLACED, "replaced by a newer connection"))
            member.sessions.clear()
        session = Session(member, filter, peer)
        member.sessions.append(session)
        resumed, replayed = self._place(session, after, last)
        welcome = self._welcome(session, now, resumed=resumed, replayed=replayed)
        session.waiting = deque([(session.position, welcome, None)])
        session.waiting_bytes = len(welcome)
        return session, effects

    def leave(self, session: Session, now: float) -> list[Effect]:
        """Take a session out; the last one of a participant takes the participant along."""
        member = session.member
        if session not in member.sessions:
            return []
        member.sessions.remove(session)
        self._detach(session)
        if member.sessions:
            return []
        del self._members[member.standing.id]
        return [self._presence("leave", member, now)]

    def catch_up(self, session: Session, max_bytes: int) -> tuple[list[bytes], Effect | None]:
        """Return what a session that is behind gets next, about `max_bytes` of it.

        With it comes a Close if the log has forgotten what the session has not read: a gap is told,
        never hidden. With nothing comes a Move: the session has met the end of the log and is live.
        So it goes live only while its line has room, and its outbox begins empty.
        """
        texts: list[bytes] = []
        size = 0
        while size < max_bytes:
            if session.position < self.log.start:
                return texts, Close(session, FELL_BEHIND, "fell behind the history; resume")
            entries = self.log.read(session.position, _READ_AT_ONCE)
            if not entries:
                self._take_waiting(session, texts)
                return texts, None if texts else Move(session, self._attach(session))
            for entry in entries:
                size += self._take_waiting(session, texts)
                if self._passes(session, entry):
                    texts.append(entry.text)
                    size += len(entry.text)
                else:
                    size += _UNSENT_BYTES
                session.position += 1
                if size >= max_bytes:
                    break
        return texts, None

    def reconfigure(self, standings: Iterable[Standing], now: float) -> list[Effect]:
        """Take a new list of participants; those no longer on it are closed for good."""
        self._standings = {standing.id: standing for standing in standings}
        self._buckets = {id: self._buckets[id] for id in self._buckets.keys() & self._standings}
        effects: list[Effect] = []
        for id, member in list(self._members.items()):
            standing = self._standings.get(id)
            if standing is not None:
                member.standing = standing
                member.info = _info(standing)
                continue
            effects += self.revoke(id, now)
        return effects

    def revoke(self, participant: str, now: float) -> list[Effect]:
        """Close every session of a participant with a final code."""
        member = self._members.get(participant)
        if member is None:
            return []
        closes = [Close(session, REVOKED, "token revoked") for session in member.sessions]
        presence = [effect for close in closes for effect in self.leave(close.session, now)]
        return [*closes, *presence]

    # --- envelopes ------------------------------------------------------------------------------

    def receive(self, session: Session, text: bytes, now: float) -> Effect | None:
        """Judge one text of a session: relay it, answer it, or refuse it. Never raises."""
        member = session.member
        wait = member.bucket.take(now)
        if wait:
            session.limited += 1
        try:
            envelope = decode(text)
        except DecodeError as error:
            refusal = (
                refusals.rate_limited(wait, "participant")
                if wait
                else refusals.invalid_envelope(error)
            )
            return self._refuse(session, refusal, refusals.readable_id(text), now)
        verdict = self._judge(member, envelope, text, now, wait)
        if isinstance(verdict, Entry):
            self.log.append(verdict)
            return self._deliver(verdict)
        if isinstance(verdict, Refusal):
            return self._refuse(session, verdict, envelope.id, now)
        if verdict is not None:
            return self._direct(session, verdict)
        return self._serve(session, envelope, now)

    def tick(self, now: float) -> list[Effect]:
        """Do what time demands: forget idle contexts and say so, children first."""
        return [self._broadcast_expiry(node, now) for node in self.tree.expire(now)]

    # --- private: judging -----------------------------------------------------------------------

    def _judge(
        self, member: Member, envelope: Envelope, text: bytes, now: float, wait: float
    ) -> Entry | Refusal | bytes | None:
        """Return the entry to broadcast, a refusal, the original of a repeat, or None for pod/*.

        The order of the checks is part of the protocol (G-20).
        """
        if wait:
            return refusals.rate_limited(wait, "participant")
        standing = member.standing
        if envelope.sender != standing.id:
            return refusals.sender_mismatch(envelope.sender, standing.id)
        kind = envelope.kind
        if kind.startswith("pod/"):
            return None
        if kind.startswith("system/"):
            return refusals.reserved_kind(kind)
        context = envelope.context
        lineage = None if context is None else self.tree.lineage(context)
        if not standing.capabilities.allow(envelope, lineage):
            return refusals.capability_violation(kind, standing.capabilities.patterns)
        original = self.log.find(envelope.id)
        if original is not None:
            if original.sender == standing.id:
                return original.text
            return refusals.duplicate_id(envelope.id)
        if context is not None:
            place = self.tree.check(context, standing.id)
            if isinstance(place, str):
                return refusals.context(place, context.id)
            node = place if isinstance(place, Node) else place.node
            if node is not None:
                wait = node.bucket.take(now)
                if wait:
                    return refusals.rate_limited(wait, "context")
            lineage = self.tree.enter(place, standing.id, now)
        to = envelope.to
        if to is None or len(to) <= _SHORT_LIST:
            return Entry(envelope.id, standing.id, to, kind, lineage, text)
        return Entry(envelope.id, standing.id, frozenset(to), kind, lineage, text)

    def _serve(self, session: Session, envelope: Envelope, now: float) -> Effect | None:
        """Answer what is meant for the gateway itself."""
        if envelope.kind != kinds.SET_FILTER:
            refusal = refusals.reserved_kind(envelope.kind)
            return self._refuse(session, refusal, envelope.id, now)
        try:
            payload = decode_unambiguous(envelope.raw_payload, "$.payload")
            if not isinstance(payload, dict) or not isinstance(payload.get("filter"), dict):
                raise FilterError("$.payload.filter", "must be an object")  # noqa: TRY301
            filter = parse(payload["filter"])
        except (DecodeError, FilterError) as error:
            refusal = refusals.invalid_filter(error)
            return self._refuse(session, refusal, envelope.id, now)
        answer = self._system(
            kinds.FILTER_SET, {"filter": filter.to_json()}, now, correlation_id=envelope.id
        )
        return self._set_filter(session, filter, answer)

    def _refuse(
        self, session: Session, refusal: Refusal, correlation_id: str | None, now: float
    ) -> Effect | None:
        self.refused[refusal.code] = self.refused.get(refusal.code, 0) + 1
        text = self._system(kinds.ERROR, refusal.payload(), now, correlation_id=correlation_id)
        return self._direct(session, text)

    # --- private: delivering --------------------------------------------------------------------

    def _deliver(self, entry: Entry) -> Broadcast:
        """Route an entry to the audiences whose filter it passes, and to whom it goes anyway."""
        if len(self._all) == 1 and self._all[0].filter is everything:
            return Broadcast(entry.text, self._all)
        if type(entry.to) is frozenset:
            route = self._find_route(entry)
        else:
            key = (entry.kind, entry.sender, entry.to, entry.lineage)
            remembered = self._routes.get(key)
            if remembered is None:
                if len(self._routes) >= _REMEMBERED_ROUTES:
                    self._routes.clear()
                remembered = self._routes[key] = self._find_route(entry)
            route = remembered
        if len(route) == len(self._all):
            return Broadcast(entry.text, route)
        return Broadcast(entry.text, route, self._besides(entry, route))

    def _find_route(self, entry: Entry) -> tuple[Audience, ...]:
        return tuple(
            audience for audience in self._all if audience.filter.matches(entry, entry.lineage)
        )

    def _besides(self, entry: Entry, route: tuple[Audience, ...]) -> tuple[Session, ...]:
        """Return the sessions outside the route that get an entry all the same (F-09)."""
        reached = frozenset(route)
        return tuple(
            session
            for id in {entry.sender, *(entry.to or ())}
            if id in self._members
            for session in self._members[id].sessions
            if session.audience is not None and session.audience not in reached
        )

    def _passes(self, session: Session, entry: Entry) -> bool:
        """Tell whether a session that reads the log gets an entry: what `_deliver` does live."""
        me = session.member.standing.id
        if entry.sender == GATEWAY:
            return entry.about != me
        return (
            entry.sender == me
            or session.filter.matches(entry, entry.lineage)
            or (entry.to is not None and me in entry.to)
        )

    def _direct(self, session: Session, text: bytes) -> Effect | None:
        if session.audience is not None:
            return Direct(session, text)
        return self._wait(session, text, None)

    def _set_filter(self, session: Session, filter: Filter, answer: bytes) -> Effect | None:
        if session.audience is None:
            return self._wait(session, answer, filter)
        self._detach(session)
        session.filter = filter
        return Move(session, self._attach(session), answer)

    def _wait(self, session: Session, text: bytes, filter: Filter | None) -> Close | None:
        """Keep a direct text of a session that is behind for its place in the stream."""
        assert session.waiting is not None, "only a live session has nothing waiting"
        session.waiting.append((self.log.end, text, filter))
        session.waiting_bytes += len(text)
        if session.waiting_bytes > self.limits.outbox_bytes:
            return Close(session, SLOW_READER, "reads too slowly; resume")
        return None

    def _take_waiting(self, session: Session, texts: list[bytes]) -> int:
        """Move the direct texts whose place has come to `texts` and return their size."""
        size = 0
        while session.waiting and session.waiting[0][0] <= session.position:
            _, text, filter = session.waiting.popleft()
            texts.append(text)
            size += len(text)
            if filter is not None:
                session.filter = filter
        session.waiting_bytes -= size
        return size

    def _broadcast(
        self, kind: str, payload: Mapping[str, Any], now: float, about: str | None = None
    ) -> Broadcast:
        id = self._new_id()
        text = self._system(kind, payload, now, id=id)
        self.log.append(Entry(id, GATEWAY, None, kind, None, text, about))
        return Broadcast(text, self._all)

    def _system(
        self,
        kind: str,
        payload: Mapping[str, Any],
        now: float,
        *,
        id: str | None = None,
        correlation_id: str | None = None,
    ) -> bytes:
        envelope: dict[str, Any] = {
            "protocol": PROTOCOL,
            "id": id or self._new_id(),
            "ts": _timestamp(now),
            "from": GATEWAY,
            "kind": kind,
        }
        if correlation_id is not None:
            envelope["correlation_id"] = correlation_id
        envelope["payload"] = payload
        return _encode(envelope)

    # --- private: roster and audiences ----------------------------------------------------------

    def _arrive(self, standing: Standing) -> Member:
        bucket = self._buckets.setdefault(standing.id, Bucket(self._rate))
        member = Member(standing, bucket, _info(standing))
        self._members[standing.id] = member
        return member

    def _presence(self, event: str, member: Member, now: float) -> Broadcast:
        payload = {"event": event, "participant": member.info}
        return self._broadcast(kinds.PRESENCE, payload, now, about=member.standing.id)

    def _attach(self, session: Session) -> Audience:
        key = _encode(session.filter.to_json())
        audience = self._audiences.get(key)
        if audience is None:
            # The constant, where it is meant, so that `_deliver` knows it at a glance.
            filter = everything if session.filter == everything else session.filter
            audience = self._audiences[key] = Audience(filter)
            self._reroute()
        audience.sessions.add(session)
        session.audience = audience
        session.waiting = None
        return audience

    def _detach(self, session: Session) -> None:
        audience = session.audience
        if audience is None:
            return
        session.audience = None
        audience.sessions.discard(session)
        if not audience.sessions:
            del self._audiences[_encode(session.filter.to_json())]
            self._reroute()

    def _reroute(self) -> None:
        self._all = tuple(self._audiences.values())
        self._routes.clear()

    def _place(self, session: Session, after: str | None, last: int | None) -> tuple[bool, int]:
        """Set where a new session begins to read; return `resumed` and `replayed` (G-12)."""
        end = self.log.end
        position = None if after is None else self.log.after(after)
        if position is not None:
            session.position = position
            return True, self._count(session, position, end)
        session.position = end
        count = 0
        while last and count < last and session.position > self.log.start:
            first = max(self.log.start, session.position - _READ_AT_ONCE)
            for entry in reversed(self.log.read(first, session.position - first)):
                session.position -= 1
                count += self._passes(session, entry)
                if count == last:
                    break
        return False, count

    def _count(self, session: Session, position: int, end: int) -> int:
        count = 0
        while position < end:
            entries = self.log.read(position, min(_READ_AT_ONCE, end - position))
            count += sum(self._passes(session, entry) for entry in entries)
            position += len(entries)
        return count

    # --- private: what the gateway says ---------------------------------------------------------

    def _welcome(self, session: Session, now: float, *, resumed: bool, replayed: int) -> bytes:
        """Return the first text of a session: ids first, then the rest while it fits (G-11)."""
        room = MAX_WELCOME_BYTES - 4096 - len(bytes(session.member.info))
        infos: list[Raw] = []
        contexts: list[Raw] = []
        ids = [_encode({"id": id}) for id in self._members]
        room -= sum(map(len, ids)) + len(ids)
        more = False
        for bare, member in zip(ids, self._members.values(), strict=True):
            extra = len(bytes(member.info)) - len(bare)
            if extra <= room:
                room -= extra
                infos.append(member.info)
            else:
                more = True
                infos.append(Raw(bare))
        while room < 0 and infos:
            room += len(bytes(infos.pop())) + 1
        for node in self.tree:
            info = _encode(_context_info(node))
            room -= len(info) + 1
            if room < 0:
                more = True
                break
            contexts.append(Raw(info))
        payload = {
            "you": session.member.info,
            "participants": infos,
            "pod": {"name": self.name, "epoch": self.epoch},
            "limits": self.limits,
            "contexts": contexts,
            "resumed": resumed,
            "replayed": replayed,
        }
        if more:
            payload["more"] = True
        # Whoever is cut off before anything came can resume from here.
        if latest := self.log.read(self.log.end - 1, 1):
            payload["position"] = latest[0].id
        return self._system(kinds.WELCOME, payload, now)

    def _broadcast_expiry(self, node: Node, now: float) -> Broadcast:
        self.expired += 1
        payload = {
            "event": "expired",
            "context": _context_info(node),
            "messages": node.messages,
            "participants": sorted(node.participants),
            "started": _timestamp(node.started),
            "last": _timestamp(node.last),
        }
        return self._broadcast(kinds.CONTEXT, payload, now)


def _info(standing: Standing) -> Raw:
    return Raw(_encode({"id": standing.id, "capabilities": standing.capabilities.patterns}))


def _context_info(node: Node) -> dict[str, str]:
    info = {"id": node.id}
    if node.type is not None:
        info["type"] = node.type
    if node.parent is not None:
        info["parent"] = node.parent.id
    return info


def _timestamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="microseconds")[:-6] + "Z"
