"""A client with several addresses moves on when a gateway is gone."""

import pytest

from mcpp.errors import BusyError, JoinError, UnreachableError
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


async def test_if_no_gateway_answers_the_last_error_is_raised() -> None:
    asked: list[str] = []
    errors = [UnreachableError(name, "gone") for name in "ab"]
    several = SeveralGateways([ListedConnector(each.url, asked, each) for each in errors], in_order)
    with pytest.raises(UnreachableError) as caught:
        await several.open(Join())
    assert caught.value is errors[1]
    assert asked == ["a", "b"]


async def test_a_refusal_for_good_is_raised_at_once() -> None:
    asked: list[str] = []
    refused = ListedConnector("a", asked, JoinError(401, "unknown token"))
    with pytest.raises(JoinError):
        await SeveralGateways([refused, ListedConnector("b", asked)], in_order).open(Join())
    assert asked == ["a"]
