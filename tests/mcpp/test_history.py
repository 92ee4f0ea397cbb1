"""Open proposals, contexts and pages, from envelopes of the past."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import Envelope, decode, encode, new_context, new_envelope
from mcpp.errors import DecodeError
from mcpp.history import context_node, open_proposals, past_envelopes
from mcpp.payloads import History
from mcpp.protocol import rpc
from mcpp.protocol.codec import decode_history
from mcpp.protocol.envelope import GATEWAY, MAX_DEPTH
from mcpp.session.effects import Served
from mcpp.session.session import ClientSession
from mcpp.testing.strategies import envelopes, hostile_json
from tests.mcpp.session.test_session import welcome

CALL = "tools/call:write"


def proposal(id: str, sender: str = "intern", **arguments: Any) -> Envelope:
    payload = {"method": "tools/call", "params": {"name": "write", "arguments": arguments}}
    return new_envelope(f"mcp/proposal:{CALL}", payload, sender=sender, to=["files"], id=id)


def fulfilment(of: str, sender: str = "boss", **arguments: Any) -> Envelope:
    params = {"name": "write", "arguments": arguments}
    return new_envelope(
        f"mcp/request:{CALL}",
        rpc.request(f"f-{of}", "tools/call", params),
        sender=sender,
        to=["files"],
        correlation_id=of,
        id=f"f-{of}",
    )


def word(kind: str, of: str, sender: str) -> Envelope:
    return new_envelope(kind, {"reason": "no"}, sender=sender, correlation_id=of)


@pytest.mark.rule("P-36")
@pytest.mark.parametrize(
    ("later", "is_open"),
    [
        (fulfilment("p", path="a"), False),
        (fulfilment("p", path="another"), True),  # P-20: not what was proposed
        (fulfilment("q", path="a"), True),
        (word("mcp/withdraw", "p", "intern"), False),
        (word("mcp/withdraw", "p", "mallory"), True),  # P-21: only the proposer
        (word("mcp/withdraw", "q", "intern"), True),
        (word("tombstone", "p", "mallory"), True),  # not erased, but sent
        (new_envelope("chat", {"text": "yes"}, sender="boss", correlation_id="p"), True),
    ],
)
def test_a_fulfilment_or_its_proposer_s_withdrawal_closes_a_proposal(
    later: Envelope, is_open: bool
) -> None:
    found = open_proposals([proposal("p", path="a"), later])
    assert [each.id for each in found] == ["p"] * is_open


@pytest.mark.rule("P-36")
def test_an_erased_answer_closes_a_proposal_since_it_may_have_been_the_fulfilment() -> None:
    answer = word("tombstone", "p", "boss")
    assert open_proposals([proposal("p"), answer], erased={answer.id}, rejected=True) == []


@pytest.mark.rule("P-36")
def test_a_rejected_proposal_is_listed_on_request() -> None:
    log = [proposal("p"), proposal("q"), word("mcp/reject", "p", "boss")]
    assert [each.id for each in open_proposals(log)] == ["q"]
    assert [each.id for each in open_proposals(log, rejected=True)] == ["p", "q"]
    log.append(fulfilment("p"))  # a rejection is an opinion
    assert [each.id for each in open_proposals(log, rejected=True)] == ["q"]


@pytest.mark.rule("P-36")
def test_a_proposal_that_no_participant_may_fulfil_is_not_open() -> None:
    other = proposal("p")
    odd = new_envelope("mcp/proposal:tools/call:read", other.payload, sender="a", to=["files"])
    nobody = new_envelope(other.kind, other.payload, sender="a")
    assert open_proposals([odd, nobody]) == []


@given(st.lists(envelopes() | st.sampled_from([proposal("p"), fulfilment("p")]), max_size=20))
def test_open_proposals_of_any_log_are_among_its_proposals(log: list[Envelope]) -> None:
    found = open_proposals(log, rejected=True)
    assert all(each in log and each.kind.startswith("mcp/proposal") for each in found)
    assert open_proposals(found, rejected=True) == found


@pytest.mark.rule("P-35")
def test_a_context_comes_with_its_descendants_and_their_states() -> None:
    outer = new_context("task", id="outer", parent="root")
    inner = new_context("reasoning", id="inner", parent="outer")
    log = [
        new_envelope("chat", {"text": "begin"}, sender="a", context=outer),
        new_envelope("reflection", {"thought": "hm"}, sender="b", context=inner),
        new_envelope("conclusion", {"text": "no"}, sender="a", context=inner),  # not its creator
        new_envelope("conclusion", {"text": "done"}, sender="a", context=outer),
    ]
    node = context_node("outer", log, live=[])
    assert node is not None
    assert (node.type, node.state, node.conclusion) == ("task", "concluded", log[3])
    assert [(child.id, child.state) for child in node.children] == [("inner", "expired")]
    live = context_node("outer", log[:2], live=["outer", "inner"])
    assert live is not None
    assert [each.state for each, _ in live.walk()] == ["open", "open"]
    assert context_node("other", log, live=[]) is None


def page(entries: list[bytes], **members: Any) -> bytes:
    joined = b",".join(
        b'{"position":%d,"time":1.5,"envelope":%b}' % one for one in enumerate(entries)
    )
    rest = msgspec.json.encode(
        {"start": 0, "end": len(entries), "indexed_to": 0, "epoch": "e"} | members
    )
    payload = b'{"entries":[%b],%b' % (joined, rest[1:])
    empty = encode(new_envelope("system/history", 0, sender=GATEWAY, correlation_id="q"))
    return empty.replace(b'"payload":0', b'"payload":' + payload)


def nested(levels: int) -> bytes:
    """Return an envelope with this many levels; it is one, and its payload the next."""
    text = encode(new_envelope("chat", 0, sender="eve"))
    return text.replace(b'"payload":0', b'"payload":' + b"[" * (levels - 1) + b"]" * (levels - 1))


@pytest.mark.rule("P-33")
def test_a_page_holds_envelopes_of_every_depth_as_their_senders_wrote_them() -> None:
    deepest, flat = nested(MAX_DEPTH), nested(2)
    text = page([deepest, flat]).replace(b'"from":"eve"', b'"from" :\n"eve"')
    with pytest.raises(DecodeError):
        decode(text)
    session = joined_session()
    query = new_envelope("pod/history", {}, sender="me", id="q")
    session.send(query, give_up_at=1.0)
    session.transmit(0.0)
    (served,) = session.receive(text, 0.0)
    assert isinstance(served, Served)
    assert served.query == query
    found = list(past_envelopes(served.answer.payload_as(History)))
    assert [one.envelope for one in found] == [decode(deepest), decode(flat)]
    assert [(one.position, one.time, one.erased) for one in found] == [
        (0, 1.5, False),
        (1, 1.5, False),
    ]


@pytest.mark.rule("P-33")
def test_only_a_page_of_the_gateway_may_be_nested_deeper() -> None:
    text = page([nested(MAX_DEPTH)])
    for forged in (
        text.replace(GATEWAY.encode(), b"mallory"),
        text.replace(b"system/history", b"system/presence"),
        page([nested(MAX_DEPTH + 1)]),
    ):
        with pytest.raises(DecodeError):
            decode_history(forged)


@given(hostile_json())
def test_decoding_a_page_raises_only_decode_errors(text: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_history(text)


@pytest.mark.rule("P-33")
def test_a_page_is_no_position_and_reaches_no_handler() -> None:
    session = joined_session()
    position = session.position
    assert session.receive(page([nested(2)]), 0.0) == ()  # nobody waits for it
    assert (session.position, session.take()) == (position, None)


@pytest.mark.rule("P-33")
def test_the_state_of_a_replay_is_direct_too() -> None:
    session = joined_session()
    position = session.position
    query = new_envelope("pod/replay", {}, sender="me", id="q")
    session.send(query, give_up_at=1.0)
    session.transmit(0.0)
    state = new_envelope("system/replay", {"state": "paused"}, sender=GATEWAY)
    answer = new_envelope("system/replay", {}, sender=GATEWAY, correlation_id="q")
    assert session.receive(encode(state), 0.0) == ()
    assert session.receive(encode(answer), 0.0) == (Served(query, answer),)
    assert (session.position, session.take()) == (position, None)


def joined_session() -> ClientSession:
    session = ClientSession("me")
    session.join()
    session.receive(welcome(), 0.0)
    return session
