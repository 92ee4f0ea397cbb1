"""Limits of pods and participants, and what a reload changes without a restart."""

import asyncio
import ssl
from pathlib import Path

import pytest
import trustme
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import mcpp
from mcpp.errors import TooLargeError
from mcpp_gateway import config
from mcpp_gateway.config import ConfigError
from tests.gateway.sockets import (
    BOUND,
    chat,
    config_text,
    id_of,
    joined,
    receive,
    receive_until,
    running,
    token,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def parsed(text: str) -> config.Config:
    return config.parse(text, {})


@pytest.mark.rule("O-03")
def test_limits_of_a_pod_and_a_participant_override_the_general_ones() -> None:
    text = (
        "[limits]\nburst = 7\nmax_message_bytes = 5000\n"
        "[pods.demo.limits]\nburst = 9\n"
        '[pods.demo.participants.alice]\ntoken = "0123456789abcdef"\nlimits = { burst = 3 }\n'
        "[pods.lab]\n"
    )
    found = parsed(text)
    assert (found.limits_of("demo").burst, found.limits_of("lab").burst) == (9, 7)
    assert found.limits_of("demo").max_message_bytes == 5000
    (alice,) = found.pods["demo"]
    assert alice.limits_in(found.limits_of("demo")).burst == 3


@pytest.mark.rule("O-03")
@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("[pods.demo.limits]\nburst = 0", "pods.demo.limits.burst"),
        ("[pods.demo.limits]\nwhat = 1", "pods.demo.limits.what"),
        ('[pods.demo.limits]\nburst = "many"', "pods.demo.limits.burst"),
        (
            '[pods.demo.participants.a]\ntoken = "0123456789abcdef"\nlimits = { burst = 0 }',
            "pods.demo.participants.a.limits.burst",
        ),
        (
            '[pods.demo.participants.a]\ntoken = "0123456789abcdef"\nlimits = { outbox_bytes = 9 }',
            "outbox_bytes",
        ),
        (
            (
                '[pods.demo.participants.a]\ntoken = "0123456789abcdef"\n'
                "limits = { max_message_bytes = 3_000_000 }"
            ),
            "pods.demo.participants.a.limits.max_message_bytes",
        ),
        (
            (
                "[pods.demo.limits]\noutbox_bytes = 12_000_000\n[pods.lab]\n[issuers.company]\n"
                'jwks_url = "https://localhost/keys"\naudience = "mcpp"\n'
                "[issuers.company.allow.limits]\nmax_message_bytes = 3_000_000"
            ),
            "issuers.company.allow.limits.max_message_bytes",
        ),
    ],
)
def test_mistakes_in_limits_name_the_key(lines: str, key: str) -> None:
    with pytest.raises(ConfigError, match=key.replace(".", r"\.")):
        parsed(lines)


@pytest.mark.rule("O-03")
def test_larger_messages_need_a_pod_with_room_for_them() -> None:
    lines = (
        '[pods.demo.participants.a]\ntoken = "0123456789abcdef"\n'
        "limits = { max_message_bytes = 3_000_000 }\n[pods.lab]\n[issuers.company]\n"
        'jwks_url = "https://localhost/keys"\naudience = "mcpp"\n'
        '[issuers.company.allow]\npods = ["d*"]\nlimits = { max_message_bytes = 3_000_000 }\n'
    )
    found = parsed(lines + "[pods.demo.limits]\noutbox_bytes = 12_000_000\n")
    assert found.largest_message_bytes == 3_000_000


@pytest.mark.rule("O-03")
async def test_a_participants_own_limits_apply_to_it_alone() -> None:
    text = config_text(
        {
            "alice": "limits = { burst = 2, messages_per_second = 0.001, max_message_bytes = 700 }",
            "bob": "",
        }
    )
    async with (
        asyncio.timeout(3 * BOUND),
        running(text) as gateway,
        joined(gateway, "alice") as alice,
        joined(gateway, "bob") as bob,
    ):
        shown = (await receive(alice))["payload"]["limits"]
        assert (shown["burst"], shown["max_message_bytes"]) == (2, 700)
        assert shown["max_hops"] == 64
        assert (await receive(bob))["payload"]["limits"]["max_message_bytes"] == 1_048_576
        for _ in range(3):
            await alice.send(last := chat("alice"))
        refusal = (await receive_until(alice, id_of(last)))[-1]
        assert refusal["payload"]["error"] == "rate_limited"
        for _ in range(3):
            await bob.send(last := chat("bob", "x" * 900))
        await receive_until(bob, id_of(last))
        await alice.send(chat("alice", "x" * 900))
        await alice.wait_closed()
        assert alice.close_code == 1009


@pytest.mark.rule("O-03")
async def test_limits_are_reloaded_for_connections_that_are_open() -> None:
    async with (
        asyncio.timeout(3 * BOUND),
        running(config_text()) as gateway,
        joined(gateway, "alice") as alice,
    ):
        await receive(alice)
        changed = {"messages_per_second": 0.001, "burst": 1, "max_connections_per_pod": 1}
        gateway.reconfigure(parsed(config_text(None, gateway=None, **changed)))
        for _ in range(3):
            await alice.send(last := chat("alice"))
        refusal = (await receive_until(alice, id_of(last)))[-1]
        assert refusal["payload"]["error"] == "rate_limited"
        with pytest.raises(InvalidStatus):
            async with joined(gateway, "bob"):
                pass
        gateway.reconfigure(parsed(config_text()))
        async with joined(gateway, "bob") as bob:
            assert (await receive(bob))["payload"]["limits"]["burst"] == 400
        await alice.send(last := chat("alice"))
        assert (await receive_until(alice, id_of(last)))[-1]["kind"] == "chat"


@pytest.mark.rule("O-03")
@pytest.mark.parametrize("fragmented", [False, True])
@pytest.mark.parametrize("of_participant", [False, True])
async def test_the_message_size_is_reloaded_for_connections_that_are_open(
    of_participant: bool, fragmented: bool
) -> None:
    def text(max_bytes: int) -> str:
        if of_participant:
            return config_text({"alice": f"limits = {{ max_message_bytes = {max_bytes} }}"})
        return config_text({"alice": ""}, max_message_bytes=max_bytes)

    def large() -> str | list[str]:
        whole = chat("alice", "x" * 3000)
        return [whole[:1600], whole[1600:]] if fragmented else whole

    async with (
        asyncio.timeout(3 * BOUND),
        running(text(2000)) as gateway,
        joined(gateway, "alice") as alice,
    ):
        await receive(alice)
        gateway.reconfigure(parsed(text(5000)))
        await alice.send(large())
        assert (await receive(alice))["kind"] == "chat"
        gateway.reconfigure(parsed(text(2000)))
        await alice.send(chat("alice"))
        assert (await receive(alice))["kind"] == "chat"
        await alice.send(large())
        await alice.wait_closed()
        assert alice.close_code == 1009


@pytest.mark.rule("O-03", "P-07")
async def test_a_client_gives_up_what_a_reload_has_made_too_large() -> None:
    async with asyncio.timeout(3 * BOUND), running(config_text()) as gateway:
        url = f"ws://localhost:{gateway.port}/ws?pod=demo"
        async with mcpp.connect(url, token=token("alice")) as alice:
            gateway.reconfigure(parsed(config_text(max_message_bytes=2000)))
            with pytest.raises(TooLargeError):
                await alice.send("chat", "x" * 3000)
            await alice.send("chat", "short")


@pytest.mark.rule("O-03")
async def test_a_certificate_is_reloaded(tmp_path: Path) -> None:
    authority = trustme.CA()
    trust = ssl.create_default_context()
    authority.configure_trust(trust)

    def write() -> None:
        issued = authority.issue_cert("localhost")
        issued.private_key_pem.write_to_path(tmp_path / "key.pem")
        issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")

    write()
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    text = config_text(gateway=files)
    async with asyncio.timeout(3 * BOUND), running(text) as gateway:

        async def serial() -> str:
            async with connect(
                f"wss://localhost:{gateway.port}/ws",
                additional_headers={"Authorization": f"Bearer {token('alice')}"},
                ssl=trust,
            ) as client:
                shown = client.transport.get_extra_info("ssl_object").getpeercert()
                return str(shown["serialNumber"])

        first = await serial()
        write()
        gateway.reconfigure(parsed(text))
        second = await serial()
        assert first != second
        write()
        broken = '[issuers.company]\njwks_file = "/none"\naudience = "mcpp"\n'
        with pytest.raises(ConfigError, match="jwks_file"):
            gateway.reconfigure(parsed(text + broken))  # a part that fails: nothing changes
        assert await serial() == second
        (tmp_path / "cert.pem").write_text("nonsense")
        with pytest.raises(ConfigError, match="tls_cert"):
            gateway.reconfigure(parsed(text))
        assert await serial() == second
