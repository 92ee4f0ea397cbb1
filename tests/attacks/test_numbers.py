"""Numbers that are short to write and long to read, compare or convert."""

import math
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp import Envelope, new_envelope
from mcpp.agent.fulfilments import Fulfilments
from mcpp.agent.tools import Tool
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from tests.attacks.conftest import at_most


def proposal(numbers: str) -> Envelope:
    text = f'{{"method":"tools/call","params":{{"name":"pay","arguments":{{"n":[{numbers}]}}}}}}'
    raw = msgspec.Raw(text.encode())
    return new_envelope("mcp/proposal:tools/call:pay", raw, sender="mallory", to=["bank"])


@pytest.mark.rule("P-41")
@pytest.mark.parametrize("number", ["1e300", "1.7e308", "-1E+299", "12345678901234567890"])
@pytest.mark.parametrize("count", [20_000, pytest.param(160_000, marks=pytest.mark.torture)])
def test_a_proposal_of_numbers_costs_no_more_than_other_text(number: str, count: int) -> None:
    made = proposal(",".join([number] * count))
    with at_most(0.2 + count / 400_000, "a proposal"):  # was 1.7 s for 160,000
        Fulfilments().add(made)
    asked = new_envelope(
        "mcp/request:tools/call:pay",
        rpc.request("r", "tools/call", {"name": "pay"}),
        sender="boss", to=["bank"], correlation_id=made.id, id="r",
    )  # fmt: skip
    with at_most(0.2 + count / 400_000, "a hundred requests that do not fulfil it"):
        assert not any(rpc.fulfils(asked, made) for _ in range(100))


NUMBERS = st.one_of(
    st.integers(-(10**60), 10**60),
    st.integers(-(2**54), 2**54).map(float),
    st.integers(0, 60).map(lambda exponent: 10**exponent),
    st.integers(0, 308).map(lambda exponent: 10.0**exponent),
    st.floats(allow_nan=False, allow_infinity=False),
)


@pytest.mark.rule("P-20", "P-41")
@given(NUMBERS, NUMBERS)
def test_numbers_are_equal_if_their_values_are(one: float, other: float) -> None:
    both = {proposal(repr(one)), proposal(repr(other))}
    digests = {rpc.request_digest(each) for each in both}
    assert (len(digests) == 1) is (Fraction(one) == Fraction(other))


@pytest.mark.rule("P-41")
def test_a_whole_float_is_an_integer_up_to_what_a_double_can_count_to() -> None:
    def double(number: int) -> int:
        return 2 * number

    tool = Tool.from_function(double)
    assert tool.read_arguments({"number": 2.0**53}) == {"number": 2**53}
    for number in (1e300, 2.0**54, -math.ldexp(1, 60)):
        with pytest.raises(Failure):
            tool.read_arguments({"number": number})
