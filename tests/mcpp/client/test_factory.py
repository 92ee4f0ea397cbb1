"""New envelopes: generated ids and times, or given ones."""

import math
import uuid
from datetime import UTC, datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest

from mcpp import Attachment, EncodeError, Kind, decode, encode, new_context, new_envelope
from mcpp.payloads import Chat

NOON = datetime(2025, 8, 31, 12, tzinfo=UTC)


@pytest.mark.rule("E-27")
def test_new_ids_are_uuids_in_the_order_of_time() -> None:
    ids = [new_envelope("chat", sender="a").id for _ in range(100)]
    assert {uuid.UUID(one).version for one in ids} == {7}
    assert ids == sorted(set(ids))
    assert uuid.UUID(new_context("reasoning").id).version == 7


@pytest.mark.rule("E-28")
def test_the_time_is_filled_in_as_utc() -> None:
    before = datetime.now(UTC)
    ts = new_envelope("chat", sender="a").ts
    assert ts.endswith("Z")
    assert before <= datetime.fromisoformat(ts) <= datetime.now(UTC)


def test_time_and_ids_can_be_passed_in() -> None:
    envelope = new_envelope(
        "chat", Chat(text="hi"), sender="a", clock=lambda: NOON, new_id=lambda: "m-1"
    )
    assert encode(envelope) == (
        b'{"protocol":"mcpp/v0.1","id":"m-1","ts":"2025-08-31T12:00:00.000000Z","from":"a",'
        b'"kind":"chat","payload":{"text":"hi"}}'
    )
    assert new_context(new_id=lambda: "c-1").id == "c-1"


def test_a_time_of_another_zone_is_the_same_moment_in_utc() -> None:
    evening = NOON.astimezone(timezone(timedelta(hours=9)))
    assert new_envelope("chat", sender="a", ts=evening).ts == "2025-08-31T12:00:00.000000Z"
    with pytest.raises(ValueError, match="zone"):
        new_envelope("chat", sender="a", ts=datetime(2025, 8, 31))


def test_a_context_can_be_given_by_its_id_alone() -> None:
    assert new_envelope("chat", sender="a", context="c").context == new_context(id="c")
    assert new_context(id="d", parent=new_context(id="c")).parent == "c"


@pytest.mark.parametrize(
    ("arguments", "path"),
    [
        ({"sender": "a b"}, "$.from"),
        ({"sender": 5}, "$.from"),
        ({"to": ["a", ""]}, "$.to[1]"),
        ({"to": "not alice"}, "$.to[0]"),
        ({"kind": "no spaces"}, "$.kind"),
        ({"id": ""}, "$.id"),
        ({"ts": "yesterday"}, "$.ts"),
        ({"correlation_id": "é"}, "$.correlation_id"),
        ({"context": ""}, "$.context.id"),
        ({"context": new_context(id="c", metadata={"a": "x" * 2048})}, "$.context.metadata"),
        ({"payload": math.nan}, "$.payload"),
        ({"payload": [{"a": -math.inf}]}, "$.payload"),
        ({"payload": object()}, "$.payload"),
        ({"payload": "\ud800"}, "$.payload"),
        ({"payload": 10**64}, "$"),
        ({"extra": {"from": "mallory"}}, "$.from"),
        ({"extra": {"x": math.inf}}, "$.x"),
        ({"id": "\ud800"}, "$"),
    ],
)
def test_an_invalid_envelope_cannot_be_created(arguments: dict[str, Any], path: str) -> None:
    with pytest.raises(EncodeError) as refusal:
        new_envelope(**{"kind": "chat", "sender": "a"} | arguments)
    assert refusal.value.path == path


def test_a_recursive_payload_is_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(EncodeError):
        new_envelope("chat", endless, sender="a")


def test_unknown_members_can_be_sent() -> None:
    envelope = new_envelope("chat", sender="a", extra={"trace": {"span": 1}})
    assert decode(encode(envelope)).extra == {"trace": {"span": 1}}


@pytest.mark.parametrize(
    ("members", "path"),
    [
        ({"context": {"id": "x"}}, "$.context"),
        ({"ts": datetime(2025, 1, 1)}, "$.ts"),
        ({"ts": 5}, "$.ts"),
        ({"ts": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=5)))}, "$.ts"),
        ({"to": 5}, "$.to"),
        ({"extra": [("a", 1)]}, "$"),
    ],
)
def test_an_argument_of_a_wrong_type_is_an_encode_error(members: Any, path: str) -> None:
    with pytest.raises(EncodeError) as raised:
        new_envelope("chat", sender="a", **members)
    assert raised.value.path == path


def test_one_addressee_may_be_a_string() -> None:
    assert new_envelope("chat", sender="a", to="bob").to == ("bob",)


def test_a_kind_may_be_given_in_parts() -> None:
    kind = Kind("mcp/request", "tools/call", "read_file")
    assert new_envelope(kind, sender="a").kind == "mcp/request:tools/call:read_file"


def test_metadata_is_a_mapping() -> None:
    assert new_context(metadata=MappingProxyType({"a": 1})).metadata == {"a": 1}
    with pytest.raises(EncodeError):
        new_context(metadata=[1])  # type: ignore[arg-type]


@pytest.mark.rule("E-32")
def test_a_reference_of_no_particular_type_says_so() -> None:
    reference = Attachment("a" * 64, 5)
    sent = new_envelope("chat", {}, sender="ann", attachments=[reference])
    assert b'"media_type":"application/octet-stream"' in encode(sent)
    assert sent.attachments == (reference,)
