"""Which texts contain the words of a query, in any script."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp_gateway.core.history.words import MAX_CHARACTERS, Words, searchable
from tests.gateway.harness import text


def contains(payload: object, query: str) -> bool:
    return Words.parse(query).match(text("m", "a", payload=payload))


@pytest.mark.rule("H-07")
@pytest.mark.parametrize(
    ("payload", "query"),
    [
        ("a Refund for you", "refund"),
        ("a refund for you", "REFUND You"),
        ("a refund for you", '"refund for"'),
        ("a refund for you", "ref*"),
        ("a refund for you", '"a ref"*'),
        ({"deep": [{"er": "refund"}]}, "refund"),
        ({"amount": 4200}, "4200"),
        ("re-fund", "re-fund"),
        ("snake_case_name", "case"),
        ("Straße", "STRASSE"),
        ("naïve café", "naive cafe"),
        ("naive cafe", "naïve café"),
        ("Ναός", "ναος"),
        ("ﬁle", "file"),
        ("ｆｕｌｌ", "full"),
        ("我要退款了", "退款"),
        ("我要退款了", "款"),
        ("我要退款了", "退*"),
        ("用户auth服务", "auth"),
        ("用户auth服务", "用户auth"),
        ("ขอเงินคืน", "เงิน"),
        ("返金をお願いします", "お願い"),
        ("환불해 주세요", "환불"),
        ("धनवापसी चाहिए", "चाहिए"),
        ("возврат средств", "Возврат"),
        ("استرداد المبلغ", "استرداد"),
        ("línea\nnueva", "nueva"),
    ],
)
def test_words_are_found_in_every_script(payload: object, query: str) -> None:
    assert contains(payload, query)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize(
    ("payload", "query"),
    [
        ("a refund for you", "refunds"),
        ("a refund for you", "refund missing"),
        ("a refund for you", '"for refund"'),
        ("a refund for you", "efun"),
        ("退 款", "x"),
        ("款退", "退款"),
        ({"refund": 1}, "refund"),
        (["a refund", "for you"], '"refund for"'),
        ("anything", "?!"),
        ("anything", '"'),
        ("anything", "*"),
        ("x" * MAX_CHARACTERS + " refund", "refund"),
    ],
)
def test_what_does_not_occur_is_not_found(payload: object, query: str) -> None:
    assert not contains(payload, query)


@pytest.mark.rule("H-07")
@given(payload=st.recursive(st.text() | st.integers(), st.lists), query=st.text(max_size=60))
def test_no_text_is_an_error(payload: object, query: str) -> None:
    contains(payload, query)


@pytest.mark.rule("H-07")
@given(st.text(min_size=1, max_size=40))
def test_a_text_contains_itself_if_it_has_a_word(payload: str) -> None:
    words = Words.parse(payload.replace('"', " "))
    assert not words.parts or contains(payload, payload.replace('"', " "))


@pytest.mark.parametrize(
    "broken", [b"", b"[]", b'{"payload":', b'{"payload":"\\ud800"}', b'{"payload":1e999}']
)
def test_a_text_that_cannot_be_read_has_no_words(broken: bytes) -> None:
    assert searchable(broken) == ""
