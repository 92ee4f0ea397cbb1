"""Which answers count: requests and proposals without a session."""

from itertools import count
from typing import Any

import pytest

from mcpp import Envelope, new_envelope
from mcpp.session.correlations import Correlations
from mcpp.session.effects import Answered, Noted

PARAMS: dict[str, Any] = {"name": "t", "arguments": {}}
NUMBERS = count(1)


def request(sender: str = "me", to: str = "owner", **members: Any) -> Envelope:
    id = members.setdefault("id", f"request-{next(NUMBERS)}")
    payload = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": PARAMS}
    return new_envelope("mcp/request:tools/call:t", payload, sender=sender, to=[to], **members)


def proposal(to: str = "owner") -> Envelope:
    payload = {"method": "tools/call", "params": PARAMS}
    return new_envelope("mcp/proposal:tools/call:t", payload, sender="me", to=[to])


def reply(to: Envelope, sender: str, kind: str = "mcp/response:tools/call:t") -> Envelope:
    return new_envelope(kind, sender=sender, correlation_id=to.id)


def progress(to: Envelope, sender: str) -> Envelope:
    return reply(to, sender, "mcp/notification:notifications/progress")


def cancellation(of: Envelope, sender: str) -> Envelope:
    return reply(of, sender, "mcp/notification:notifications/cancelled")


def expecting(sent: Envelope) -> tuple[Correlations, Envelope]:
    """Return correlations that expect the answer of @owner to `sent`, and `sent` itself."""
    correlations = Correlations()
    correlations.expect(sent, "owner")
    return correlations, sent


def check_answered(correlations: Correlations, proposed: Envelope, request: Envelope) -> None:
    """Check that the answer to a request is the answer to the proposal that it fulfils."""
    answer = reply(request, "owner")
    assert correlations.receive(answer) == [Answered(proposed.id, answer)]


@pytest.mark.rule("P-14")
def test_only_the_participant_that_was_asked_reports_progress_and_answers_once() -> None:
    correlations, asked = expecting(request())
    for news, effect in ((progress, Noted), (reply, Answered)):
        assert correlations.receive(news(asked, "mallory")) == ()
        assert correlations.has_requests
        right = news(asked, "owner")
        assert correlations.receive(right) == [effect(asked.id, right)]
    assert correlations.receive(reply(asked, "owner")) == ()
    assert not correlations


@pytest.mark.parametrize("correlation_id", [None, "unknown"])
def test_an_envelope_about_nothing_pending_means_nothing(correlation_id: str | None) -> None:
    correlations = Correlations()
    correlations.expect(request(), "owner")
    answer = new_envelope(
        "mcp/response:tools/call:t", sender="owner", correlation_id=correlation_id
    )
    assert correlations.receive(answer) == ()


def test_a_forgotten_request_or_proposal_is_not_answered() -> None:
    correlations = Correlations()
    for asked in (request(), proposal()):
        correlations.expect(asked, "owner")
        correlations.forget(asked.id)
        assert not correlations
        assert correlations.receive(reply(asked, "owner")) == ()


@pytest.mark.rule("P-20")
def test_the_first_fulfilment_wins_and_its_answer_is_the_proposals() -> None:
    correlations, proposed = expecting(proposal())
    assert not correlations.has_requests
    first = request("boss", correlation_id=proposed.id)
    second = request("rival", correlation_id=proposed.id)
    assert correlations.receive(first) == (Noted(proposed.id, first),)
    assert correlations.receive(second) == ()
    assert correlations.receive(reply(second, "owner")) == ()
    check_answered(correlations, proposed, first)


@pytest.mark.rule("P-20")
def test_a_request_of_ours_that_fulfils_our_proposal_answers_both() -> None:
    correlations, proposed = expecting(proposal())
    own = request("me", correlation_id=proposed.id)
    correlations.expect(own, "owner")
    correlations.receive(own)
    answer = reply(own, "owner")
    assert correlations.receive(answer) == [
        Answered(own.id, answer),
        Answered(proposed.id, answer),
    ]


def test_to_forget_one_of_two_origins_keeps_the_other() -> None:
    correlations, proposed = expecting(proposal())
    own = request("me", correlation_id=proposed.id)
    correlations.expect(own, "owner")
    correlations.receive(own)
    correlations.forget(own.id)
    check_answered(correlations, proposed, own)


@pytest.mark.rule("P-20")
def test_a_cancelled_fulfilment_ends_the_proposal_but_a_strangers_cancellation_does_not() -> None:
    correlations, proposed = expecting(proposal())
    fulfilment = request("boss", correlation_id=proposed.id)
    correlations.receive(fulfilment)
    assert correlations.receive(cancellation(fulfilment, "mallory")) == ()
    cancelled = cancellation(fulfilment, "boss")
    assert correlations.receive(cancelled) == [Answered(proposed.id, cancelled)]
    assert not correlations


@pytest.mark.rule("P-21")
def test_a_rejection_is_noted_and_closes_nothing() -> None:
    correlations, proposed = expecting(proposal())
    rejection = reply(proposed, "anyone", "mcp/reject")
    assert correlations.receive(rejection) == (Noted(proposed.id, rejection),)
    assert len(correlations) == 1


@pytest.mark.rule("P-21")
def test_only_the_proposer_withdraws_a_proposal() -> None:
    correlations, proposed = expecting(proposal())
    assert correlations.receive(reply(proposed, "mallory", "mcp/withdraw")) == ()
    withdrawal = reply(proposed, "me", "mcp/withdraw")
    assert correlations.receive(withdrawal) == (Noted(proposed.id, withdrawal),)
    assert not correlations


@pytest.mark.rule("P-14")
def test_a_fulfilment_cannot_take_over_the_id_of_a_request_to_another() -> None:
    correlations = Correlations()
    asked, proposed = request(to="files"), proposal(to="mallory")
    correlations.expect(asked, "files")
    correlations.expect(proposed, "mallory")
    forged = request("mallory", "mallory", correlation_id=proposed.id, id=asked.id)
    assert correlations.receive(forged) == ()
    assert correlations.receive(reply(asked, "mallory")) == ()
    assert len(correlations.receive(reply(asked, "files"))) == 1
