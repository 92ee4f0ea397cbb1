"""Refusals: their payloads, and finding the id of an invalid text."""

import pytest

from mcpp_gateway.core import refusals


@pytest.mark.rule("G-22")
def test_a_refusal_has_a_code_a_message_and_facts() -> None:
    payload = refusals.rate_limited(0.25, "context").payload()
    assert payload["error"] == "rate_limited"
    assert payload["scope"] == "context"
    assert 0.25 <= payload["retry_after_seconds"] < 0.252
    assert "context" in payload["message"]


@pytest.mark.rule("G-26")
@pytest.mark.parametrize("wait", [1e-6, 0.0004, 0.0005, 0.001, 0.0015, 0.12345, 7.0])
def test_the_stated_wait_is_never_too_short(wait: float) -> None:
    assert refusals.rate_limited(wait, "participant").facts["retry_after_seconds"] >= wait


@pytest.mark.rule("G-23")
@pytest.mark.parametrize("size", [10, 70_000])
def test_an_id_is_read_if_it_is_there_once_and_well_formed(size: int) -> None:
    payload = b',"payload":{"id":7,"text":"' + b"y" * size + b'"}}'
    assert refusals.readable_id(b'{"id":"x"' + payload) == "x"
    assert refusals.readable_id(b'{"id":"x","id":"x"' + payload) is None
    assert refusals.readable_id(b'{"id":"x","\\u0069d":"y"' + payload) is None
    assert refusals.readable_id(b'{"id":"x y"' + payload) is None
    assert refusals.readable_id(b'{"id":7' + payload) is None
    assert refusals.readable_id(b'{"ID":"x"' + payload) is None
    assert refusals.readable_id(b'{"id":"x","a":NaN' + payload) is None
    assert refusals.readable_id(b"[" * size) is None
    assert refusals.readable_id(b'{"id":"x","payload":' + b"[" * size) is None


@pytest.mark.rule("G-23")
def test_an_id_deeper_inside_is_not_the_envelopes() -> None:
    assert refusals.readable_id(b'{"context":{"id":"c"}}') is None
    assert refusals.readable_id(b'{"context":{"id":"c"},"id":"x"}') == "x"


@pytest.mark.rule("G-22")
@pytest.mark.parametrize(
    "code",
    ["context_cycle", "context_parent_changed", "context_depth_exceeded", "context_limit"],
)
def test_a_refused_context_is_named(code: str) -> None:
    payload = refusals.context(code, "{weird}").payload()
    assert payload["error"] == code
    assert "{weird}" in payload["message"]
