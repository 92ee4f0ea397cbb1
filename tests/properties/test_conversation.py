"""A `Conversation` over messages and a `TransientTracker` over a log decide alike (T-25)."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcpp.transient import (
    Hint,
    Matching,
    TransientTracker,
    consumed,
    transient,
    with_context_hints,
)
from tests.mcpp.prompts.logs import LogBuilder, text_result
from tests.mcpp.transient.test_conversation import APIS, Api, ApiMessages

SERVERS = ("crm", "crm", "crm", "web")
TOOLS = ("search", "find", "store", "note", "step")
KINDS = ("page", "page", "stored", "stored", "named", "both", "failed", "hints", "plain")
CALLS = st.tuples(
    st.sampled_from(TOOLS), st.sampled_from(SERVERS), st.integers(1, 3), st.sampled_from(KINDS)
)
# A turn: what the model calls at once, in which order it is answered, whether it says something.
TURNS = st.lists(st.tuples(st.lists(CALLS, max_size=3), st.booleans(), st.booleans()), max_size=12)
MATCHINGS = st.builds(
    Matching, order=st.sampled_from(["oldest", "newest"]), across_servers=st.booleans()
)


def result(kind: str, number: int, ids: list[str]) -> dict[str, Any]:
    plain = text_result(f"data {number}")
    match kind:
        case "page":
            return transient(plain, f"page {number}")
        case "stored":
            return consumed(plain)
        case "named":
            return consumed(plain, ids[-number:])
        case "both":
            return consumed(transient(plain))
        case "failed":
            return {**consumed(transient(plain)), "isError": True}
        case "hints":
            return with_context_hints(plain, [Hint("search", "store"), Hint("find", "note")])
    return plain


@pytest.mark.rule("T-25")
@settings(max_examples=300, deadline=None)
@given(TURNS, MATCHINGS, st.sampled_from(APIS), st.booleans())
def test_a_conversation_decides_as_the_tracker(
    turns: list[Any], matching: Matching, api: Api, every_turn: bool
) -> None:
    chat = ApiMessages(api, matching=matching)
    log = LogBuilder()
    tracker = TransientTracker(matching)
    calls: dict[str, str] = {}  # id in the conversation → id in the log
    for batch, backwards, talks in turns:
        if talks or not batch:
            chat.says("Let me see.")
            log.chat("analyst")
        ids = chat.calls(*((tool, {"page": number}) for tool, _, number, _ in batch))
        for id, (tool, server, number, _) in zip(ids, batch, strict=True):
            calls[id] = log.call(tool, {"page": number}, server=server)
        answered = list(zip(ids, batch, strict=True))
        for id, (tool, server, number, kind) in answered[::-1] if backwards else answered:
            # Each names results by the ids of its own world.
            chat.answers(tool, id, result(kind, number, list(calls)), server)
            log.answer(calls[id], result(kind, number, list(calls.values())))
        if every_turn:
            chat.conversation.collapse(chat.messages)
    chat.conversation.collapse(chat.messages)
    for envelope in log.envelopes:
        tracker.add(envelope)
    for id, logged in calls.items():
        ours, theirs = chat.conversation.find(id), tracker.find(logged)
        assert (ours and ours.state) == (theirs and theirs.state), id
        if theirs is not None:
            collapsed = "collapsed" in chat.conversation.badges(id)
            assert collapsed == tracker.is_collapsible(theirs), id
