"""TLS and credentials between gateways and NATS servers, with real servers and certificates."""

import json
import ssl
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import nkeys
import pytest
import trustme

import mcpp
from mcpp_gateway import config
from mcpp_gateway.cluster.nats_servers import NatsServers
from mcpp_gateway.config import ConfigError
from tests.gateway.cluster.test_gateways import QUICK, gateways, url
from tests.gateway.ports import free_ports
from tests.gateway.sockets import token

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class SecuredServers(NatsServers):
    """A server with more lines in its configuration."""

    more = ""

    def _config(self, number: int, folder: Path) -> str:
        return super()._config(number, folder) + self.more


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[SecuredServers]:
    servers = SecuredServers(tmp_path / "nats", 1, free_ports(2))
    yield servers
    servers.stop()


async def check(folder: Path, address: str, *more: str) -> None:
    """Run a gateway with these settings, and send a message through it."""
    lines = [
        "[gateway]\nport = 0",
        '[log]\nkind = "jetstream"\npath = "copies"',
        f'[cluster]\nservers = ["{address}"]\nreplicas = 1',
        *more,
        f'[pods.demo.participants.a]\ntoken = "{token("a")}"\ncapabilities = [{{ kind = "chat" }}]',
    ]
    found = config.parse("\n".join(lines), {}, folder=folder)
    async with (
        gateways(found, 1) as (only,),
        mcpp.connect(url(only), token=token("a"), options=QUICK) as a,
    ):
        await a.send("chat", "hello")


async def test_a_gateway_reaches_servers_over_mutual_tls_only(
    tmp_path: Path, nats: SecuredServers
) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    stranger.cert_pem.write_to_path(tmp_path / "stranger.pem")
    for name in ("server", "gateway"):
        cert = authority.issue_cert("localhost", "127.0.0.1", common_name=name)
        cert.private_key_pem.write_to_path(tmp_path / f"{name}.key")
        cert.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    nats.more = (
        f'tls {{ cert_file: "{tmp_path}/server.pem", key_file: "{tmp_path}/server.key",'
        f' ca_file: "{tmp_path}/ca.pem", verify: true }}\n'
    )
    nats.start()
    address = nats.addresses[0].replace("nats:", "tls:")
    own = 'tls_cert = "gateway.pem"\ntls_key = "gateway.key"'
    await check(tmp_path, address, 'tls_ca = "ca.pem"', own)
    with pytest.raises(ConfigError, match=r"cluster\.servers: .*certificate"):
        await check(tmp_path, address, 'tls_ca = "stranger.pem"', own)
    with pytest.raises(ConfigError, match="cannot load the certificates"):
        await check(tmp_path, address, 'tls_ca = "missing.pem"')


async def test_a_wrong_password_is_reported_and_not_tried_again(
    tmp_path: Path, nats: SecuredServers
) -> None:
    nats.more = 'authorization { user: "gateway", password: "right-and-long" }\n'
    nats.start()
    place = nats.addresses[0].removeprefix("nats://")
    await check(tmp_path, f"nats://gateway:right-and-long@{place}")
    for wrong in (f"nats://gateway:wrong@{place}", f"nats://{place}"):
        with pytest.raises(ConfigError, match=r"cluster\.servers: .*[Aa]uthorization") as found:
            await check(tmp_path, wrong)
        assert "wrong@" not in str(found.value)


async def test_a_gateway_signs_in_with_a_credentials_file(
    tmp_path: Path, nats: SecuredServers
) -> None:
    operator, account, system, user = (new_key(prefix) for prefix in ("O", "A", "A", "U"))
    limits = {"subs": -1, "data": -1, "payload": -1}
    most = {"imports": -1, "exports": -1, "conn": -1, "leaf": -1, "wildcards": True, **limits}
    storage = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
    jwt = claims(operator, operator, {"type": "operator", "version": 2})
    account_claims = {"type": "account", "version": 2, "limits": {**most, **storage}}
    account_jwt = claims(operator, account, account_claims)
    system_jwt = claims(operator, system, {"type": "account", "version": 2, "limits": most})
    user_jwt = claims(account, user, {"type": "user", "version": 2, **limits})
    (tmp_path / "operator.jwt").write_text(jwt)
    nats.more = (
        f'operator: "{tmp_path}/operator.jwt"\nresolver: MEMORY\n'
        f"system_account: {public(system)}\nresolver_preload: {{\n"
        f"  {public(account)}: {account_jwt}\n  {public(system)}: {system_jwt}\n}}\n"
    )
    (tmp_path / "gateway.creds").write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
    )
    nats.start()
    await check(tmp_path, nats.addresses[0], 'credentials = "gateway.creds"')
    with pytest.raises(ConfigError, match=r"cluster\.servers: "):
        await check(tmp_path, nats.addresses[0])


PREFIXES = {"O": nkeys.PREFIX_BYTE_OPERATOR, "A": nkeys.PREFIX_BYTE_ACCOUNT}


def new_key(prefix: str) -> nkeys.KeyPair:
    return nkeys.from_seed(
        nkeys.encode_seed(ssl.RAND_bytes(32), PREFIXES.get(prefix, nkeys.PREFIX_BYTE_USER))
    )


def public(key: nkeys.KeyPair) -> str:
    return str(key.public_key, "ascii")


def claims(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, nats: dict[str, object]) -> str:
    """Return a signed statement of an issuer about a subject, as NATS reads it."""
    body = {"jti": "x", "iat": 1, "iss": public(issuer), "sub": public(subject), "name": "x"}
    parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, {**body, "nats": nats}]
    text = ".".join(part(json.dumps(each).encode()) for each in parts)
    return f"{text}.{part(issuer.sign(text.encode()))}"


def part(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
