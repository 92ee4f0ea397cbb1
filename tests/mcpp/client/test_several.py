"""A client with several addresses moves on when a gateway is gone."""

import pytest

import mcpp
from mcpp.errors import (
    AddressError,
    BusyError,
    JoinError,
    TokenRefusedError,
    UnreachableError,
)
from mcpp.session.resumption import Join
from mcpp.transports.several import SeveralGateways, split_addresses
from mcpp.transports.transport import Connector, MemoryTransport, Transport

pytestmark = pytest.mark.anyio


class ListedConnector:
    """A gateway that answers as it is told, and records that it was asked."""

    def __init__(self, address: str, asked: list[str], error: Exception | None = None) -> None:
        self.address = address
        self.error = error
        self._asked = asked

    async def open(self, join: Join) -> Transport:
        self._asked.append(self.address)
        if self.error is not None:
            raise self.error
        return MemoryTransport(lambda on_text, on_close: _NoLink())


class _NoLink:
    def send(self, text: bytes) -> None:
        pass

    def close(self) -> None:
        pass


def in_order(connectors: list[Connector]) -> None:
    """Leave the order as it is."""


def test_a_list_of_addresses_is_split_where_an_address_begins() -> None:
    assert split_addresses("ws://a/ws?x=1,2, wss://b/ws") == ["ws://a/ws?x=1,2", "wss://b/ws"]
    assert split_addresses("http://a:1,https://b") == ["http://a:1", "https://b"]
    assert split_addresses("ws://a/ws") == ["ws://a/ws"]


@pytest.mark.parametrize("error", [UnreachableError("b", "gone"), BusyError("b", "503", 5)])
async def test_a_gateway_that_is_gone_is_passed_over(error: Exception) -> None:
    asked: list[str] = []
    gone = ListedConnector("b", asked, error)
    others = [ListedConnector(name, asked) for name in "ca"]
    several = SeveralGateways([gone, *others], in_order)
    await several.open(Join())
    assert asked == ["b", "c"]
    await several.open(Join())  # another one than before
    assert asked == ["b", "c", "a"]


@pytest.mark.rule("P-12")
async def test_a_refusal_of_one_gateway_is_passed_over() -> None:
    asked: list[str] = []
    refused = ListedConnector("a", asked, JoinError(401, "unknown token"))
    await SeveralGateways([refused, ListedConnector("b", asked)], in_order).open(Join())
    assert asked == ["a", "b"]


GONE = UnreachableError("gone", "no route")
BUSY = BusyError("busy", "503 draining", 7)
UNKNOWN = JoinError(401, "unknown token")
RENEWABLE = TokenRefusedError(401, "expired")
FORBIDDEN = JoinError(403, "not for pod x")


@pytest.mark.rule("P-12")
@pytest.mark.parametrize(
    ("errors", "expected", "parts"),
    [
        ([UNKNOWN, UNKNOWN], JoinError, ["401"]),
        ([UNKNOWN, FORBIDDEN, UNKNOWN], JoinError, ["403", "not for pod x"]),
        ([FORBIDDEN, RENEWABLE], TokenRefusedError, ["401", "expired"]),
        ([GONE, UNKNOWN], UnreachableError, ["gone", "no route", "g1 refused with 401"]),
        ([GONE, BUSY, UNKNOWN], BusyError, ["busy", "draining", "g2 refused with 401"]),
        ([BUSY, GONE], BusyError, ["draining"]),
        ([GONE, GONE], UnreachableError, ["no route"]),
    ],
)
async def test_if_none_accepts_the_error_after_which_a_retry_helps_soonest_is_raised(
    errors: list[Exception], expected: type[Exception], parts: list[str]
) -> None:
    asked: list[str] = []
    listed = [ListedConnector(f"g{at}", asked, each) for at, each in enumerate(errors)]
    several = SeveralGateways(listed, in_order)
    for _ in range(2):
        with pytest.raises(expected) as caught:
            await several.open(Join())
        assert type(caught.value) is expected
        assert asked == [each.address for each in listed]
        asked.clear()
        assert all(part in str(caught.value) for part in parts)
        assert str(caught.value).count("refused with") <= 1
        assert getattr(caught.value, "retry_after_seconds", 7) == 7


async def test_a_malformed_address_of_a_list_is_reported_before_any_is_tried() -> None:
    with pytest.raises(AddressError, match="none"):
        async with mcpp.connect("ws://127.0.0.1:1/ws,ws://127.0.0.1:none/ws", token="x" * 32):
            raise AssertionError("it has joined")
