"""Typed payloads, and the text of an envelope."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import kinds, new_envelope
from mcpp.payloads import BY_FAMILY, Chat, Error, text_of


@pytest.mark.rule("E-26")
def test_every_known_kind_has_a_payload() -> None:
    known = {getattr(kinds, name) for name in kinds.__all__ if name.isupper()}
    assert known - {kinds.TOMBSTONE} == set(BY_FAMILY)  # a tombstone's payload is null (H-10)


@pytest.mark.parametrize("payload", sorted({p.__name__ for p in BY_FAMILY.values()}))
def test_every_payload_has_a_docstring(payload: str) -> None:
    struct = next(p for p in BY_FAMILY.values() if p.__name__ == payload)
    assert (struct.__doc__ or "").endswith(".")


def test_default_values_are_not_encoded() -> None:
    assert msgspec.json.encode(Chat(text="hi")) == b'{"text":"hi"}'
    error = Error(error="duplicate_id", message="no")
    assert msgspec.json.encode(error) == b'{"error":"duplicate_id","message":"no"}'


def test_the_format_of_a_chat_is_plain_or_markdown() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"text": "hi", "format": "html"}, Chat)


@pytest.mark.parametrize(
    ("kind", "payload", "text"),
    [
        ("chat", {"text": "hi"}, "hi"),
        ("chat", {"text": ""}, ""),
        ("chat", {"text": 3, "thought": "t"}, "t"),
        ("chat", {"text": 3}, None),
        ("chat", "hi", None),
        ("chat", None, None),
        ("reflection", {"thought": "hm"}, "hm"),
        ("reflection", {"text": "x", "thought": "hm"}, "hm"),
        ("reflection", {"text": "x"}, "x"),
        ("mcp/reject", {"reason": "unsafe", "text": "no"}, "no"),
        ("note", {"text": "custom"}, "custom"),
        ("mcp/request:tools/list", {"method": "tools/list"}, None),
    ],
)
def test_the_text_of_an_envelope(kind: str, payload: Any, text: str | None) -> None:
    assert text_of(new_envelope(kind, payload, sender="a")) == text


@pytest.mark.parametrize(
    ("payload", "text", "complete"),
    [
        ({"decision": "deny"}, "deny", "deny"),
        ({"decision": "deny", "text": "unsafe"}, "deny\nunsafe", "deny\nunsafe"),
        ({"text": "unsafe", "decision": None}, "unsafe", "unsafe"),
        ({"decision": "same", "text": "same"}, "same", "same"),
        ({"decision": False}, "false", "false"),
        ({"decision": {"go": [1]}}, '{"go":[1]}', '{"go":[1]}'),
        ({"decision": "deny", "sure": 0.9}, "deny", 'deny\n{"sure":0.9}'),
        ({"plan": "later"}, '{"plan":"later"}', '{"plan":"later"}'),
        ("as a string", "as a string", "as a string"),
        ({"decision": "", "text": ""}, None, None),
        ({}, None, None),
        (None, None, None),
    ],
)
def test_the_text_of_a_conclusion(payload: Any, text: str | None, complete: str | None) -> None:
    conclusion = new_envelope("conclusion", payload, sender="a")
    assert text_of(conclusion) == text
    assert text_of(conclusion, complete=True) == complete
    assert conclusion.payload == payload


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(), parts),
    max_leaves=10,
)
MEMBERS = st.sampled_from(["text", "thought", "decision", "other"])


@given(
    st.sampled_from(["chat", "reflection", "conclusion", "odd"]),
    JSON | st.dictionaries(MEMBERS, JSON),
    st.booleans(),
)
def test_any_payload_has_a_text_or_none(kind: str, payload: Any, complete: bool) -> None:
    text = text_of(new_envelope(kind, payload, sender="a"), complete=complete)
    assert text is None or isinstance(text, str)


@pytest.mark.parametrize("kind", ["chat", "conclusion"])
@pytest.mark.parametrize("raw", [b"", b"{", b'{"text":"\\ud800"}', b"[" * 100_000, b"\xff"])
def test_an_invalid_payload_has_no_text(kind: str, raw: bytes) -> None:
    envelope = new_envelope(kind, None, sender="a")
    broken = msgspec.structs.replace(envelope, raw_payload=msgspec.Raw(raw))
    assert text_of(broken) is None
