"""Which request fulfils a proposal."""

import tracemalloc
from typing import Any

import pytest

from mcpp import Envelope, new_envelope
from mcpp.agent.fulfilments import Fulfilments
from mcpp.client.factory import new_id
from mcpp.protocol import rpc

PAY: dict[str, Any] = {"name": "pay", "arguments": {"amount": 1}}


def proposal(sender: str) -> Envelope:
    payload = {"method": "tools/call", "params": PAY}
    return new_envelope("mcp/proposal:tools/call:pay", payload, sender=sender, to=["bank"])


def request(proposal: Envelope, rpc_id: str | None = None) -> Envelope:
    id = new_id()
    return new_envelope(
        "mcp/request:tools/call:pay",
        rpc.request(rpc_id or id, "tools/call", PAY),
        sender="boss",
        to=["bank"],
        correlation_id=proposal.id,
        id=id,
    )


@pytest.mark.rule("P-20")
@pytest.mark.parametrize("flooder", ["intern", "mallory"])
def test_a_flood_of_proposals_reopens_none_that_is_closed(flooder: str) -> None:
    proposals = Fulfilments()
    fulfilled, withdrawn = proposal("intern"), proposal("intern")
    proposals.add(fulfilled)
    proposals.add(withdrawn)
    assert proposals.fulfil(request(fulfilled)) is None
    proposals.withdraw(withdrawn.id, "intern")
    for _ in range(3000):
        proposals.add(proposal(flooder))
    for closed, why in ((fulfilled, "already_fulfilled"), (withdrawn, "withdrawn")):
        failure = proposals.fulfil(request(closed))
        assert failure is not None
        assert failure.message == why


@pytest.mark.rule("P-20")
def test_a_request_with_a_json_rpc_id_of_its_own_fulfils_a_proposal() -> None:
    proposals = Fulfilments()
    mine = proposal("intern")
    proposals.add(mine)
    assert proposals.fulfil(request(mine, "another-id")) is None
    assert proposals.fulfil(request(mine)) is not None


def test_what_is_kept_is_bounded() -> None:
    proposals = Fulfilments()
    for _ in range(3000):
        made = proposal("mallory")
        proposals.add(made)
        proposals.withdraw(made.id, "mallory")
    assert len(proposals._proposals) <= 2048


@pytest.mark.rule("P-20")
def test_long_proposals_are_not_kept_whole() -> None:
    proposals = Fulfilments()
    tracemalloc.start()
    for _ in range(50):
        payload = {"method": "tools/call", "params": {"name": "pay", "note": "x" * 100_000}}
        proposals.add(
            new_envelope("mcp/proposal:tools/call:pay", payload, sender="mallory", to=["bank"])
        )
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 500_000


@pytest.mark.rule("P-20", "P-41")
@pytest.mark.parametrize(
    ("proposed", "asked", "same"),
    [
        ({"a": 1e20}, {"a": 100000000000000000000}, True),
        ({"a": 1e300}, {"a": 1e300}, True),
        ({"a": -(2**53)}, {"a": -9007199254740992.0}, True),
        ({"a": 2**53 + 1}, {"a": 2**53}, False),
        ({"a": 2**80 + 1}, {"a": 2.0**80}, False),
        ({"a": 1.0, "b": [2]}, {"b": [2.0], "a": 1}, True),
        ({"a": 1}, {"a": True}, False),
        ({"a": 1}, {"a": "1"}, False),
        ({"a": 1}, {"a": 1, "b": None}, False),
        ({"a": 0.1}, {"a": 0.1}, True),
    ],
)
def test_what_is_asked_is_compared_by_value(proposed: Any, asked: Any, same: bool) -> None:
    def params(arguments: Any) -> dict[str, Any]:
        return {"name": "pay", "arguments": arguments}

    wanted = new_envelope(
        "mcp/proposal:tools/call:pay",
        {"method": "tools/call", "params": params(proposed)},
        sender="intern",
        to=["bank"],
    )
    request = new_envelope(
        "mcp/request:tools/call:pay",
        rpc.request("r", "tools/call", params(asked) | {"_meta": {"progressToken": "r"}}),
        sender="boss",
        to=["bank"],
        correlation_id=wanted.id,
        id="r",
    )
    assert rpc.fulfils(request, wanted) is same
    proposals = Fulfilments()
    proposals.add(wanted)
    assert (proposals.fulfil(request) is None) is same
