"""Addresses of clients behind proxies: the header alone, then gateways that use it."""

import asyncio
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpp_gateway import config
from mcpp_gateway.edge.admission.proxies import Proxies
from mcpp_gateway.edge.server import Gateway
from tests.gateway.sockets import BOUND, config_text, http, running, token, upgrade_request

TRUSTED = ["127.0.0.1", "::1", "10.0.0.0/8", "2001:db8:1::/48"]
NETWORKS = [ipaddress.ip_network(each) for each in TRUSTED]
CLIENT = "198.51.100.7"
ADMIN = "token-of-the-admin-0123456789"


def client_address(peer: str, *headers: str) -> str:
    return Proxies(TRUSTED).client_address(peer, {"x-forwarded-for": list(headers)})


def is_trusted(address: str) -> bool:
    return any(ipaddress.ip_address(address) in network for network in NETWORKS)


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


mapped = st.ip_addresses(v=4).map(lambda address: f"::ffff:{address}")
addresses = st.ip_addresses().map(str) | mapped
proxies = st.sampled_from(NETWORKS).flatmap(lambda each: st.ip_addresses(network=each)).map(str)
# What a client may write itself: nonsense, addresses, and those of proxies.
texts = st.lists(st.text(max_size=50) | addresses | proxies, max_size=30).map(",".join)


def plain(address: str) -> str:
    """Return an address as the gateway names it."""
    parsed = ipaddress.ip_address(address)
    return str(getattr(parsed, "ipv4_mapped", None) or parsed)


def are_clients(address: str) -> bool:
    return not (is_trusted(plain(address)) or is_loopback(plain(address)))


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[str], str]:
    """Draw the headers that proxies have appended to a client's own, and the client's address."""
    client = draw(addresses.filter(are_clients))
    appended = [client, *draw(st.lists(proxies, max_size=15))]
    text = ",".join([draw(texts), *(draw(st.sampled_from(["", " "])) + each for each in appended)])
    at = draw(st.integers(0, len(appended)))  # a proxy may add a header instead of an entry
    *before, after = text.rsplit(",", at)
    return [*before[:1], ",".join([*before[1:], after])], plain(client)


@pytest.mark.rule("G-88")
@given(proxies, chains())
def test_the_client_is_who_the_last_trusted_proxy_names_whatever_it_writes_itself(
    peer: str, chain: tuple[Sequence[str], str]
) -> None:
    headers, client = chain
    assert client_address(peer, *headers) == client


@pytest.mark.rule("G-88")
@given(addresses.filter(lambda each: not is_trusted(plain(each))), texts)
def test_a_peer_that_is_not_trusted_names_no_address_but_its_own(peer: str, text: str) -> None:
    assert client_address(peer, text) == plain(peer)


@pytest.mark.rule("G-88")
@given(proxies, texts)
def test_any_header_gives_the_peer_or_an_address_that_is_not_trusted(peer: str, text: str) -> None:
    found = client_address(peer, text)
    assert found == plain(peer) or (found == plain(found) and not is_trusted(found))
    assert is_loopback(peer) or not is_loopback(found)


@pytest.mark.rule("G-88")
@pytest.mark.parametrize(
    "header",
    [
        "",
        ",",
        "unknown",
        f"{CLIENT}:4711",
        f"[{CLIENT}]",
        f"{CLIENT}/32",
        "198.51.100.07",
        "fe80::1%eth0",
        f"{CLIENT}, ",
        f"{CLIENT}, nonsense, 10.1.2.3",
        "10.1.2.3, 127.0.0.1",
        "127.0.0.2",
        CLIENT + ", 10.1.2.3" * 16,
        "1" * 16_000,
    ],
)
def test_a_header_that_names_no_client_leaves_the_peers_address(header: str) -> None:
    assert client_address("10.0.0.1", header) == "10.0.0.1"


@pytest.mark.rule("G-88")
def test_what_is_no_address_stays_as_it_is() -> None:
    assert client_address("local", CLIENT) == "local"


def gateway_text(*trusted: str) -> str:
    text = config_text(gateway={"trusted_proxies": trusted})
    return f'{text}\n[admin]\ntoken = "{ADMIN}"\n'


async def guess(gateway: Gateway, client: str, method: str = "GET", path: str = "/session") -> int:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: {client}\r\n"
    return (await http(gateway, f"{head}Authorization: Bearer wrong\r\n\r\n".encode()))[0]


@pytest.mark.anyio
@pytest.mark.rule("G-06", "G-88")
@pytest.mark.parametrize(("trusted", "status"), [(("127.0.0.1", "::1"), 401), ((), 429)])
async def test_wrong_tokens_are_counted_by_the_address_that_a_trusted_proxy_names(
    trusted: Sequence[str], status: int
) -> None:
    async with asyncio.timeout(BOUND), running(gateway_text(*trusted)) as gateway:
        guesses = [asyncio.create_task(guess(gateway, CLIENT)) for _ in range(11)]
        for done in asyncio.as_completed(guesses):  # some are answered late
            if await done == 429:
                break
        else:
            pytest.fail("no guess was refused")
        for each in guesses:
            each.cancel()
        assert await guess(gateway, CLIENT) == 429
        assert await guess(gateway, "198.51.100.8") == status


@pytest.mark.anyio
@pytest.mark.rule("G-88")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/ws"),
        ("GET", "/session"),
        ("GET", "/prompt"),
        ("GET", "/metrics"),
        ("GET", "/admin/status"),
        ("POST", "/admin/drain"),
        ("POST", "/blob"),
        ("POST", "/mcp"),
    ],
)
async def test_every_refusal_is_logged_with_the_clients_address(
    method: str, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with asyncio.timeout(BOUND), running(gateway_text("127.0.0.1", "::1")) as gateway:
        assert await guess(gateway, CLIENT, method, path) == 401
    (refused,) = (each for each in caplog.records if each.msg == "request refused")
    assert vars(refused)["address"] == CLIENT


@pytest.mark.anyio
@pytest.mark.rule("G-44", "G-88")
async def test_metrics_are_not_served_to_a_client_of_a_proxy_on_this_machine() -> None:
    async with asyncio.timeout(BOUND), running(gateway_text("127.0.0.1", "::1")) as gateway:
        get = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n{}\r\n"
        assert (await http(gateway, get.format("").encode()))[0] == 200
        forwarded = get.format(f"X-Forwarded-For: 127.0.0.1, {CLIENT}\r\n")
        assert (await http(gateway, forwarded.encode()))[0] == 401


@asynccontextmanager
async def joined(gateway: Gateway, participant: str) -> AsyncIterator[None]:
    """Join as a client of a proxy."""
    reader, writer = await asyncio.open_connection("localhost", gateway.port)
    lines = f"Authorization: Bearer {token(participant)}", f"X-Forwarded-For: {CLIENT}"
    writer.write(upgrade_request(gateway.port, *lines))
    assert (await reader.readline()).startswith(b"HTTP/1.1 101 ")
    try:
        yield
    finally:
        writer.close()


async def shown(gateway: Gateway) -> dict[str, str]:
    """Return the addresses of participants as the admin sees them."""
    head = f"GET /admin/connections HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {ADMIN}"
    _, _, body = await http(gateway, f"{head}\r\n\r\n".encode())
    return {each["participant"]: each["address"] for each in json.loads(body)}


@pytest.mark.anyio
@pytest.mark.rule("G-88")
async def test_a_reload_changes_who_is_trusted_for_connections_from_then_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with (
        asyncio.timeout(BOUND),
        running(gateway_text()) as gateway,
        joined(gateway, "alice"),
    ):
        gateway.reconfigure(config.parse(gateway_text("127.0.0.1", "::1"), {}))
        async with joined(gateway, "bob"):
            found = await shown(gateway)
    assert found.pop("alice") in ("127.0.0.1", "::1")
    assert found == {"bob": CLIENT}
    logged = [vars(each)["address"] for each in caplog.records if each.msg == "joined"]
    assert logged[1:] == [CLIENT]


@pytest.mark.anyio
@pytest.mark.rule("G-88")
async def test_an_ipv4_client_of_an_ipv6_socket_has_its_ipv4_address() -> None:
    with socket.socket(socket.AF_INET6) as listening:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(("::ffff:127.0.0.1", 0))
        gateway = Gateway(config.parse(gateway_text(), {}), asyncio.get_running_loop())
        await gateway.listen([listening])
        try:
            async with asyncio.timeout(BOUND), joined(gateway, "alice"):
                assert await shown(gateway) == {"alice": "127.0.0.1"}
        finally:
            await gateway.drain()
