"""A pod on a stage: whoever comes gets a seat, and each seat shows what was sent to it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, assert_never

from mcpp.filters import Filter, everything
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.effects import Broadcast, Close, Direct, Effect, Move
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.log import Log
from mcpp_gateway.core.pod import ParticipantSettings, PodCore, Session

EVERYTHING: Sequence[Mapping[str, Any]] = ({"kind": "*"},)
FREE: Mapping[str, Any] = {"messages_per_second": 0, "context_messages_per_second": 0}


def text(id: str, sender: str, kind: str = "chat", payload: Any = None, **members: Any) -> bytes:
    """Return an envelope as a participant would send it."""
    envelope = {
        "protocol": "mcpp/v0.1",
        "id": id,
        "ts": "2025-08-31T12:00:00Z",
        "from": sender,
        "kind": kind,
        **members,
        "payload": payload,
    }
    return json.dumps(envelope, separators=(",", ":")).encode()


@dataclass(eq=False)
class Seat:
    """One connection as its participant sees it."""

    session: Session = field(init=False)
    texts: list[bytes] = field(default_factory=list)
    closed: int | None = None

    @property
    def seen(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.texts]

    @property
    def ids(self) -> list[str]:
        return [envelope["id"] for envelope in self.seen]

    @property
    def kinds(self) -> list[str]:
        return [envelope["kind"] for envelope in self.seen]

    @property
    def last(self) -> dict[str, Any]:
        return self.seen[-1]

    @property
    def welcome(self) -> dict[str, Any]:
        first = self.seen[0]
        assert first["kind"] == "system/welcome"
        payload: dict[str, Any] = first["payload"]
        return payload

    @property
    def errors(self) -> list[str]:
        """The codes of all refusals."""
        return [
            envelope["payload"]["error"]
            for envelope in self.seen
            if envelope["kind"] == "system/error"
        ]


class Stage:
    """A pod whose effects are performed at once, with a clock that only the test moves."""

    def __init__(
        self,
        *ids: str,
        limits: Mapping[str, Any] = FREE,
        capabilities: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
        multiple: Iterable[str] = (),
        log: Log | None = None,
    ) -> None:
        self.now = 1000.0
        numbers = count()
        self._message_numbers = count()
        rules = capabilities or {}
        standings = [
            ParticipantSettings(id, Capabilities(rules.get(id, EVERYTHING)), id in set(multiple))
            for id in ids
        ]
        self.pod = PodCore(
            "stage", standings, PodLimits(**limits), new_id=lambda: f"sys-{next(numbers)}", log=log
        )

    def join(
        self,
        id: str,
        *,
        filter: Filter = everything,
        after: str | None = None,
        last: int | None = None,
        behind: bool = False,
    ) -> Seat:
        """Let somebody in; `behind` leaves the welcome and all else to `catch_up`."""
        seat = Seat()
        seat.session, effects = self.pod.join(
            id, self.now, filter=filter, after=after, last=last, peer=seat
        )
        self.perform(effects)
        while not behind and seat.session.audience is None:
            self.catch_up(seat)
        return seat

    def catch_up(self, seat: Seat, max_bytes: int = 1 << 20) -> None:
        texts, effect = self.pod.catch_up(seat.session, max_bytes)
        seat.texts += texts
        self.perform([] if effect is None else [effect])

    def send(self, seat: Seat, kind: str = "chat", *, id: str | None = None, **members: Any) -> str:
        """Send an envelope and return its id."""
        id = id or f"m-{next(self._message_numbers)}"
        sender = members.pop("sender", seat.session.member.standing.id)
        self.send_text(seat, text(id, sender, kind, **members))
        return id

    def send_text(self, seat: Seat, data: bytes) -> None:
        effect = self.pod.receive(seat.session, data, self.now)
        self.perform([] if effect is None else [effect])

    def leave(self, seat: Seat) -> None:
        self.perform(self.pod.leave(seat.session, self.now))

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.perform(self.pod.tick(self.now))

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Broadcast():
                    sessions = [one for each in effect.audiences for one in each.sessions]
                    for session in (*sessions, *effect.besides):
                        session.peer.texts.append(effect.text)
                case Direct():
                    effect.session.peer.texts.append(effect.text)
                case Move():
                    if effect.text:
                        effect.session.peer.texts.append(effect.text)
                case Close():
                    effect.session.peer.closed = effect.code
                    self.perform(self.pod.leave(effect.session, self.now))
                case _:
                    assert_never(effect)
