"""Typed payloads: one for every kind that the protocol knows."""

import msgspec
import pytest

from mcpp import kinds
from mcpp.payloads import BY_FAMILY, Chat, Error


@pytest.mark.rule("E-26")
def test_every_known_kind_has_a_payload() -> None:
    known = {value for name, value in vars(kinds).items() if name.isupper()}
    assert known == set(BY_FAMILY)


@pytest.mark.parametrize("payload", sorted({p.__name__ for p in BY_FAMILY.values()}))
def test_every_payload_says_what_it_is(payload: str) -> None:
    struct = next(p for p in BY_FAMILY.values() if p.__name__ == payload)
    assert (struct.__doc__ or "").endswith(".")


def test_members_left_at_their_default_are_not_sent() -> None:
    assert msgspec.json.encode(Chat(text="hi")) == b'{"text":"hi"}'
    error = Error(error="duplicate_id", message="no")
    assert msgspec.json.encode(error) == b'{"error":"duplicate_id","message":"no"}'


def test_a_chat_s_format_is_one_of_two() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"text": "hi", "format": "html"}, Chat)
