"""Compares the tracker with a naive implementation that scans the whole log for every rule."""

from typing import Any

from hypothesis import given, settings

from mcpp import Envelope
from mcpp.transient import TransientTracker
from tests.properties.random_logs import LOGS


def expected(log: list[Envelope]) -> dict[str, str]:
    """Return the final state of each transient response, by its id."""
    asked = {one.id: (at, one) for at, one in enumerate(log) if "request:tools/call" in one.kind}
    answered: dict[str, tuple[int, Envelope]] = {}  # by call
    pairs: set[tuple[str, str, str]] = set()
    states: dict[str, str] = {}  # by call

    def fetched(call: str, server: str, tools: set[str]) -> bool:
        return answered[call][1].sender == server and asked[call][1].kind.split(":", 2)[2] in tools

    def key(call: str) -> tuple[Any, ...]:
        request, response = asked[call][1], answered[call][1]
        arguments = request.payload["params"]["arguments"]
        return (request.sender, response.sender, context(request), request.kind, arguments)

    for at, one in enumerate(log):
        call = one.correlation_id or ""
        if "response:tools/call" not in one.kind or call not in asked or call in answered:
            continue
        asked_at, request = asked[call]
        if asked_at > at or one.sender not in (request.to or ()):
            continue
        answered[call] = (at, one)
        result = one.payload["result"]
        if result.get("isError"):
            continue
        server, tool = one.sender, request.kind.split(":", 2)[2]
        meta = result.get("_meta", {})
        for hint in meta.get("contextHints", []):
            pairs.add((server, hint["consumedBy"], hint["tool"]))
        mark = meta.get("context", {})
        if mark.get("consumed"):
            ready = [
                other
                for other, state in states.items()
                if state == "pending"
                and asked[other][1].sender == request.sender
                and answered[other][0] < asked_at
            ]
            if "consumes" in mark:
                ids = mark["consumes"]
                named_here = [c for c in ready if c in ids or answered[c][1].id in ids]
                own = (server, request.sender)
                chosen = [c for c in named_here if answered[c][1].sender in own]
            else:
                here = [
                    other
                    for other, state in states.items()
                    if state == "pending"
                    and asked[other][1].sender == request.sender
                    and context(asked[other][1]) == context(request)
                ]
                named = {(fetcher, consumer) for own, consumer, fetcher in pairs if own == server}
                if any(consumer == tool for _, consumer in named):
                    fetchers = {fetcher for fetcher, consumer in named if consumer == tool}
                    usable = [c for c in here if fetched(c, server, fetchers)]
                elif {answered[c][1].sender for c in here} - {request.sender} <= {server}:
                    paired = {fetcher for fetcher, _ in named}
                    usable = [c for c in here if not fetched(c, server, paired)]
                    usable = [] if server == request.sender else usable
                    usable = [c for c in usable if answered[c][1].sender == server]
                else:
                    usable = []
                chosen = sorted(set(usable) & set(ready), key=lambda c: answered[c][0])[:1]
            states |= dict.fromkeys(chosen, "consumed")
        if mark.get("lifecycle") == "transient":
            for other, state in states.items():
                if state == "pending" and key(other) == key(call):
                    states[other] = "superseded"
            states[call] = "pending"
    return {answered[call][1].id: state for call, state in states.items()}


def context(envelope: Envelope) -> str | None:
    return None if envelope.context is None else envelope.context.id


@settings(max_examples=400, deadline=None)
@given(LOGS)
def test_the_tracker_follows_the_rules(log: list[Envelope]) -> None:
    tracker = TransientTracker()
    for envelope in log:
        tracker.add(envelope)
    found = {
        envelope.id: tracked.state
        for envelope in log
        if "response" in envelope.kind and (tracked := tracker.find(envelope.id)) is not None
    }
    assert found == expected(log)
