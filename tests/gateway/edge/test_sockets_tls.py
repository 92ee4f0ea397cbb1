"""TLS by certificate files."""

import ssl
from pathlib import Path

import pytest
import trustme

from tests.gateway.sockets import chat, config_text, id_of, joined, receive_until, running

pytestmark = pytest.mark.anyio


async def test_a_participant_joins_over_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    client_side = ssl.create_default_context()
    authority.configure_trust(client_side)
    async with (
        running(config_text(gateway=files)) as gateway,
        joined(gateway, "alice", tls=client_side) as alice,
    ):
        text = chat("alice", "x" * 100_000)
        await alice.send(text)
        assert await receive_until(alice, id_of(text))
