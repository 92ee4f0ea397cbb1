"""Requests for history (`pod/history`), answered once the edge has had it read.

One request of a participant is read at a time, here if the log is in memory, so that many requests
at once cannot hold up the pod (G-65).
"""

from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec

from mcpp import kinds
from mcpp.errors import DecodeError
from mcpp.protocol.envelope import Envelope
from mcpp_gateway.core import refusals, system_envelopes
from mcpp_gateway.core.effects import Effect, ReadHistory
from mcpp_gateway.core.history.pages import MAX_PAGE_BYTES, MemorySource, Page, read_page
from mcpp_gateway.core.history.query import HistoryError, parse_query
from mcpp_gateway.core.joining.members import Members
from mcpp_gateway.core.journal import UnreadableError
from mcpp_gateway.core.requests.answers import Answers
from mcpp_gateway.core.requests.service import read_request
from mcpp_gateway.core.sessions import Session

MAX_WAITING: Final = 8  # of one participant
_WAIT_SECONDS: Final = 1.0

Outcome: TypeAlias = Page | HistoryError | UnreadableError


class HistoryRequests:
    """What each participant has asked for and not yet received. The first of each is being read."""

    def __init__(
        self,
        answers: Answers,
        members: Members,
        source: Callable[[], MemorySource | None],
        *,
        outbox_bytes: int,
        epoch: Callable[[], str],
    ) -> None:
        self.change_outbox(outbox_bytes)
        self._answers = answers
        self._members = members
        self._source = source  # returns None where the edge reads the log
        self._epoch = epoch
        self._waiting: dict[str, deque[ReadHistory]] = {}  # by participant

    def change_outbox(self, outbox_bytes: int) -> None:
        """Bound pages: one must not fill the outbox of a session that reads (G-38)."""
        self.max_bytes = min(MAX_PAGE_BYTES, outbox_bytes // 4)

    def serve(self, session: Session, envelope: Envelope, now: float) -> Effect | None:
        """Take a request and return it once it can be read, or refuse it."""
        try:
            query = parse_query(read_request(envelope, "payload"))
            listener = self._members.rights(session.member.settings.id)
            return self._add(ReadHistory(session, query, listener, envelope.id))
        except HistoryError as error:
            return self._reply(session, envelope.id, error, now)
        except DecodeError as error:
            bad = HistoryError(error.path, error.reason)
            return self._reply(session, envelope.id, bad, now)
        except OverflowError:
            refusal = refusals.rate_limited(_WAIT_SECONDS, "history")
            return self._answers.refuse(session, refusal, envelope.id, now)

    @property
    def is_in_memory(self) -> bool:
        """Whether `read` can read the log."""
        return self._source() is not None

    def read(self, request: ReadHistory, now: float, in_time: Callable[[], bool]) -> list[Effect]:
        """Answer a request from a log in memory. The page ends when there is no more time."""
        source = self._source()
        assert source is not None
        if request.session not in request.session.member.sessions:
            return self._next(request)
        rights = self._members.rights(request.listener.participant)
        try:
            outcome: Outcome = read_page(
                request.query, rights, source, max_bytes=self.max_bytes, in_time=in_time
            )
        except (HistoryError, UnreadableError) as error:
            outcome = error
        answer = self._reply(request.session, request.id, outcome, now)
        return [*([] if answer is None else [answer]), *self._next(request)]

    def answer(self, request: ReadHistory, outcome: Outcome, now: float) -> list[Effect]:
        """Answer a request with what was read for it, and begin the participant's next one."""
        effects: list[Effect] = []
        rights = self._members.rights(request.listener.participant)
        if rights.hears != request.listener.hears:
            # The participant may hear something else since: what was read is not for it.
            return [msgspec.structs.replace(request, listener=rights)]
        if request.session in request.session.member.sessions:
            answer = self._reply(request.session, request.id, outcome, now)
            effects += [] if answer is None else [answer]
        return [*effects, *self._next(request)]

    def _add(self, request: ReadHistory) -> ReadHistory | None:
        """Take a request; return it if it can be read now. Raises OverflowError."""
        waiting = self._waiting.setdefault(request.listener.participant, deque())
        if len(waiting) > MAX_WAITING:
            raise OverflowError
        waiting.append(request)
        return request if len(waiting) == 1 else None

    def _next(self, request: ReadHistory) -> list[Effect]:
        """Remove a request that was read, and return the participant's next one."""
        waiting = self._waiting[request.listener.participant]
        waiting.popleft()
        if waiting:
            return [waiting[0]]
        del self._waiting[request.listener.participant]
        return []

    def _reply(
        self, session: Session, correlation_id: str, outcome: Outcome, now: float
    ) -> Effect | None:
        if isinstance(outcome, HistoryError):
            refusal = refusals.invalid_history(outcome.member, outcome.reason)
            return self._answers.refuse(session, refusal, correlation_id, now)
        if isinstance(outcome, UnreadableError):
            refusal = refusals.log_unreadable()
            return self._answers.refuse(session, refusal, correlation_id, now)
        payload = system_envelopes.history(outcome, self._epoch())
        return self._answers.reply(
            session, kinds.HISTORY, payload, now, correlation_id=correlation_id
        )
