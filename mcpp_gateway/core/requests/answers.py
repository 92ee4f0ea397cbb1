"""Answers: texts for one session, each in its place behind what was accepted before (G-30)."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from mcpp import kinds
from mcpp.filters import Filter
from mcpp_gateway.core import system_envelopes
from mcpp_gateway.core.delivery import Router
from mcpp_gateway.core.effects import SLOW_READER, Close, Effect
from mcpp_gateway.core.refusals import Refusal
from mcpp_gateway.core.sessions import Session


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A text for one session, with the filter that it acknowledges."""

    session: Session
    text: bytes
    filter: Filter | None = None


class Answers:
    """Sends texts to single sessions. Owns the counts of refusals, by code."""

    def __init__(
        self,
        delivery: Router,
        hold: Callable[[Answer], bool],
        *,
        outbox_bytes: int,
        new_id: Callable[[], str],
    ) -> None:
        self.refused: dict[str, int] = {}
        self._delivery = delivery
        self._hold = hold  # keeps an answer for `release` if something before it is not committed
        self.outbox_bytes = outbox_bytes
        self._new_id = new_id

    def send(self, session: Session, text: bytes, filter: Filter | None = None) -> Effect | None:
        """Send a text, now or once everything accepted before it is committed."""
        answer = Answer(session, text, filter)
        if not self._hold(answer):
            return self.deliver(answer)
        session.waiting_bytes += len(text)
        if session.waiting_bytes > self.outbox_bytes:
            # G-39: a disk that hangs must not make answers pile up.
            return Close(session, SLOW_READER, "outbox full: answers wait for the log; resume")
        return None

    def release(self, answer: Answer) -> Effect | None:
        """Send an answer that was held."""
        answer.session.waiting_bytes -= len(answer.text)
        return self.deliver(answer)

    def deliver(self, answer: Answer) -> Effect | None:
        """Send an answer at this place of its session's stream, unless that has left since."""
        session = answer.session
        if session not in session.member.sessions:
            return None
        if session.audience is None:
            return self._delivery.queue(session, answer.text, answer.filter)
        return self._delivery.answer(session, answer.text, answer.filter)

    def reply(
        self,
        session: Session,
        kind: str,
        payload: Mapping[str, Any],
        now: float,
        *,
        correlation_id: str | None,
        filter: Filter | None = None,
    ) -> Effect | None:
        """Send an envelope of the gateway."""
        text = system_envelopes.system(
            self._new_id(), kind, payload, now, correlation_id=correlation_id
        )
        return self.send(session, text, filter)

    def refuse(
        self, session: Session, refusal: Refusal, correlation_id: str | None, now: float
    ) -> Effect | None:
        """Send a refusal, and count it."""
        self.refused[refusal.code] = self.refused.get(refusal.code, 0) + 1
        payload = refusal.payload()
        return self.reply(session, kinds.ERROR, payload, now, correlation_id=correlation_id)
