"""A gateway without sockets: the real pod, in one process, for tests that take milliseconds."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, assert_never

import msgspec
import uuid6

from mcpp.filters import everything, parse
from mcpp.protocol.capabilities import Capabilities
from mcpp_gateway.core.effects import Broadcast, Close, Direct, Effect, Move
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.pod import ParticipantSettings, PodCore, Session

_CUT = 1006  # what a client sees when a line ends without a close frame


class MemoryConnection:
    """One participant's line into a `MemoryGateway`."""

    def __init__(
        self,
        gateway: "MemoryGateway",
        on_text: Callable[[bytes], None],
        on_close: Callable[[int, str], None],
    ) -> None:
        self._gateway = gateway
        self.on_text = on_text
        self.on_close = on_close
        self.session: Session
        self.open = True

    def send(self, text: bytes) -> None:
        """Give a text to the pod. What it causes has been delivered when this returns.

        A link that the pod has closed says nothing more, even if it does not know that yet.
        """
        if self.open:
            self._gateway.receive(self, text)

    def close(self) -> None:
        """Leave the pod."""
        if self.open:
            self._gateway.hang_up(self, 1000, "")


class MemoryGateway:
    """A pod whose lines are function calls. Owns the pod and delivers in its order."""

    def __init__(
        self,
        participants: Mapping[str, Sequence[Mapping[str, Any]]],
        *,
        pod: str = "test",
        limits: Mapping[str, Any] | None = None,
        multiple: Iterable[str] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._name = pod
        self._limits = msgspec.convert(dict(limits or {}), PodLimits)
        several = set(multiple)
        self._standings = [
            ParticipantSettings(id, Capabilities(patterns), id in several)
            for id, patterns in participants.items()
        ]
        self._clock = clock
        self._links: set[MemoryConnection] = set()
        self._due: deque[tuple[MemoryConnection, bytes | tuple[int, str]]] = deque()
        self._delivering = False
        self._pod = self._new_pod()

    def add(self, participant: str, capabilities: Sequence[Mapping[str, Any]]) -> None:
        """Let one more participant in from now on."""
        self._standings.append(ParticipantSettings(participant, Capabilities(capabilities), False))
        self._perform(self._pod.reconfigure(self._standings, self._clock()))

    def connect(
        self,
        participant: str,
        *,
        on_text: Callable[[bytes], None],
        on_close: Callable[[int, str], None],
        filter: str | None = None,
        after: str | None = None,
        last: int | None = None,
    ) -> MemoryConnection:
        """Join the pod. Raises KeyError for a participant that was not configured."""
        link = MemoryConnection(self, on_text, on_close)
        chosen = everything if filter is None else parse(filter)
        link.session, effects = self._pod.join(
            participant, self._clock(), filter=chosen, after=after, last=last, peer=link
        )
        self._links.add(link)
        self._perform(effects)
        self._catch_up(link)
        self._deliver()
        return link

    def receive(self, link: MemoryConnection, text: bytes) -> None:
        """Give one text of a link to the pod."""
        if link not in self._links:
            return
        effect = self._pod.receive(link.session, text, self._clock())
        self._perform([] if effect is None else [effect])
        self._deliver()

    def tick(self) -> None:
        """Let the pod do what time demands."""
        self._perform(self._pod.tick(self._clock()))
        self._deliver()

    def cut(self, participant: str) -> None:
        """Drop a participant's lines as a failing network would."""
        for link in [link for link in self._links if _id(link) == participant]:
            self.hang_up(link, _CUT, "")

    def restart(self) -> None:
        """Lose everything, as a gateway without a durable log does: a new epoch begins."""
        links, self._links = self._links, set()
        self._pod = self._new_pod()
        for link in links:
            self._due.append((link, (_CUT, "")))
        self._deliver()

    def hang_up(self, link: MemoryConnection, code: int, reason: str) -> None:
        """End a link and tell both sides."""
        self._end(link, code, reason)
        self._deliver()

    # --- private --------------------------------------------------------------------------------

    def _new_pod(self) -> PodCore:
        return PodCore(self._name, self._standings, self._limits, new_id=lambda: str(uuid6.uuid7()))

    def _end(self, link: MemoryConnection, code: int, reason: str) -> None:
        self._links.discard(link)
        self._due.append((link, (code, reason)))
        self._perform(self._pod.leave(link.session, self._clock()))

    def _catch_up(self, link: MemoryConnection) -> None:
        while link in self._links and link.session.audience is None:
            texts, effect = self._pod.catch_up(link.session, 1 << 20)
            self._due.extend((link, text) for text in texts)
            self._perform([] if effect is None else [effect])

    def _perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Broadcast():
                    for audience in effect.audiences:
                        for session in audience.sessions:
                            self._due.append((session.peer, effect.text))
                    for session in effect.besides:
                        self._due.append((session.peer, effect.text))
                case Direct():
                    self._due.append((effect.session.peer, effect.text))
                case Move():
                    if effect.text:
                        self._due.append((effect.session.peer, effect.text))
                case Close():
                    link = effect.session.peer
                    self._end(link, effect.code, effect.reason)
                case _:
                    assert_never(effect)

    def _deliver(self) -> None:
        """Call the links in order. A link that sends while it is called only adds to the queue."""
        if self._delivering:
            return
        self._delivering = True
        try:
            while self._due:
                link, what = self._due.popleft()
                if not link.open:
                    continue
                if isinstance(what, bytes):
                    link.on_text(what)
                else:
                    link.open = False
                    link.on_close(*what)
        finally:
            self._delivering = False


def _id(link: MemoryConnection) -> str:
    return link.session.member.standing.id
