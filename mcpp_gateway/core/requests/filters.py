"""Requests for another filter (`pod/filter`)."""

from mcpp import kinds
from mcpp.errors import DecodeError, FilterError
from mcpp.filters import Filter, parse
from mcpp.protocol.envelope import Envelope
from mcpp_gateway.core import refusals
from mcpp_gateway.core.effects import Effect
from mcpp_gateway.core.hearing.filter_counts import FilterCounts
from mcpp_gateway.core.requests.answers import Answers
from mcpp_gateway.core.requests.service import read_request
from mcpp_gateway.core.sessions import Session


class FilterRequests:
    """Exchanges the filters of sessions. Owns nothing."""

    def __init__(self, answers: Answers, counts: FilterCounts) -> None:
        self._answers = answers
        self._counts = counts

    def serve(self, session: Session, envelope: Envelope, now: float) -> Effect | None:
        """Apply a filter at the place of its acknowledgement, or refuse it."""
        try:
            filter = _parse(envelope)
        except (DecodeError, FilterError) as error:
            refusal = refusals.invalid_filter(error)
            return self._answers.refuse(session, refusal, envelope.id, now)
        participant = session.member.settings.id
        if not self._counts.allow(participant, filter, session.wanted):
            return self._answers.refuse(session, refusals.filter_limit(), envelope.id, now)
        self._counts.remove(participant, session.wanted)
        self._counts.add(participant, filter)
        session.wanted = filter
        payload = {"filter": filter.to_json()}
        return self._answers.reply(
            session, kinds.FILTER_SET, payload, now, correlation_id=envelope.id, filter=filter
        )


def _parse(envelope: Envelope) -> Filter:
    payload = read_request(envelope, "$.payload")
    if not isinstance(payload, dict) or not isinstance(payload.get("filter"), dict):
        raise FilterError("$.payload.filter", "must be an object")
    return parse(payload["filter"])
