"""Connections end with the key that signed their token, and only with that one."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from websockets.asyncio.client import ClientConnection

import mcpp
from mcpp.cli.main import main
from mcpp_gateway import config
from mcpp_gateway.core.effects import TOKEN_EXPIRED
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.tokens.store import TokenStore
from tests.gateway.sockets import BOUND, chat, config_text, receive, receive_until, running
from tests.gateway.tokens.issuer import LoopbackIssuer, new_key
from tests.gateway.tokens.test_sockets_tokens import joined, status

pytestmark = [pytest.mark.anyio, pytest.mark.rule("S-14")]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def with_store(folder: Path) -> AsyncIterator[tuple[Gateway, TokenStore]]:
    text = config_text() + f'[tokens]\npath = "{folder}"\n'
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        yield gateway, TokenStore(folder)


def sign(store: TokenStore, name: str) -> str:
    now = time.time()
    return store.sign(name, ["demo"], {"multiple": True}, now=now, expires=now + 600)


async def check_open(client: ClientConnection, name: str) -> None:
    await client.send(text := chat(name))
    await receive_until(client, mcpp.decode(text).id)


def look(gateway: Gateway) -> None:
    """Have the gateway look at keys and connections, as it does every second."""
    gateway._learn_tokens()
    gateway._end_withdrawn()


async def test_connections_of_a_deleted_key_end_within_two_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcpp.gateway")
    async with with_store(tmp_path / "tokens") as (gateway, store):
        (old,) = store.key_ids()
        stolen = sign(store, "ada")
        new = store.add_key()
        kept = sign(store, "eve")
        look(gateway)
        async with joined(gateway, kept) as eve, joined(gateway, stolen) as ada:
            await receive(ada)
            began = time.monotonic()
            (tmp_path / "tokens" / f"key-{old}.pem").unlink()
            await ada.wait_closed()
            assert (ada.close_code, time.monotonic() - began < 2) == (TOKEN_EXPIRED, True)
            assert await status(gateway, stolen) == 401
            await check_open(eve, "eve")
        assert store.key_ids() == [new]
    closed = [vars(each) for each in caplog.records if each.message == "key withdrawn"]
    assert [each["participant"] for each in closed] == ["ada"]


@pytest.mark.parametrize("way", ["being written", "folder gone", "not a folder"])
async def test_what_cannot_be_read_ends_no_connection_but_a_deleted_key_does(
    tmp_path: Path, way: str
) -> None:
    folder, away = tmp_path / "tokens", tmp_path / "away"
    async with with_store(folder) as (gateway, store):
        (first,) = store.key_ids()
        path = folder / f"key-{first}.pem"
        pem = path.read_bytes()
        token = sign(store, "ada")
        store.add_key()
        other = sign(store, "eve")
        (second,) = set(store.key_ids()) - {first}
        look(gateway)
        async with joined(gateway, token) as ada, joined(gateway, other) as eve:
            if way == "being written":
                path.write_bytes(pem[:20])
            else:
                folder.rename(away)
                if way == "not a folder":
                    folder.write_text("")
            look(gateway)
            await check_open(ada, "ada")
            assert await status(gateway, token) == 101
            if way == "being written":
                path.write_bytes(pem)
            else:
                folder.unlink(missing_ok=True)
                away.rename(folder)
            (folder / f"key-{second}.pem").unlink()
            look(gateway)
            await eve.wait_closed()
            assert eve.close_code == TOKEN_EXPIRED
            await check_open(ada, "ada")


async def test_a_damaged_key_does_not_keep_a_deleted_one_alive(tmp_path: Path) -> None:
    async with with_store(tmp_path / "tokens") as (gateway, store):
        (stolen,) = store.key_ids()
        async with joined(gateway, sign(store, "ada")) as ada:
            (tmp_path / "tokens" / "key-new.pem").write_bytes(b"not a key")
            (tmp_path / "tokens" / f"key-{stolen}.pem").unlink()
            look(gateway)
            await ada.wait_closed()
            assert ada.close_code == TOKEN_EXPIRED


async def test_a_key_that_is_written_in_two_steps_is_used_once_it_is_complete(
    tmp_path: Path,
) -> None:
    other = TokenStore(tmp_path / "other")
    other.create()
    (id,) = other.key_ids()
    pem = (other.folder / f"key-{id}.pem").read_bytes()
    async with with_store(tmp_path / "tokens") as (gateway, store):
        with (store.folder / f"key-{id}.pem").open("wb") as file:
            for part in (pem[:30], pem[30:]):
                file.write(part)
                file.flush()
                look(gateway)
        assert await status(gateway, sign(other, "ada")) == 101


@pytest.mark.parametrize("form", ["public_key", "jwks_file"])
async def test_a_reload_ends_the_connections_of_a_key_that_the_file_has_no_more(
    tmp_path: Path, form: str
) -> None:
    issuer, path = LoopbackIssuer(), tmp_path / "keys"
    issuer.rotate("second")

    def write(*ids: str) -> None:
        if form == "jwks_file":
            kept = {id: issuer.keys[id] for id in ids}
            issuer.keys = issuer.keys | kept
            keys = [each for each in json.loads(issuer.key_set())["keys"] if each["kid"] in ids]
            path.write_text(json.dumps({"keys": keys}))
        else:
            key = issuer.keys[ids[-1]].public_key()
            path.write_bytes(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    write("first", "second")
    text = config_text() + f'\n[issuers.company]\n{form} = "{path}"\naudience = "mcpp"\n'
    async with (
        asyncio.timeout(4 * BOUND),
        running(text) as gateway,
        joined(gateway, issuer.sign("ada")) as ada,
    ):
        gateway.reconfigure(config.parse(text, {}))  # nothing has changed
        look(gateway)
        await check_open(ada, "ada")
        path.write_text("not a key")
        with pytest.raises(config.ConfigError, match=rf"^issuers\.company\.{form}: {path}: not a "):
            gateway.reconfigure(config.parse(text, {}))
        look(gateway)
        await check_open(ada, "ada")
        issuer.keys["third"] = new_key()
        write("first", "third")
        gateway.reconfigure(config.parse(text, {}))
        look(gateway)
        await ada.wait_closed()
        assert ada.close_code == TOKEN_EXPIRED


async def test_a_key_server_that_is_down_ends_no_connection_and_a_withdrawn_key_does() -> None:
    with LoopbackIssuer().serving() as issuer:
        text = config_text() + "\n" + issuer.config()
        async with (
            asyncio.timeout(4 * BOUND),
            running(text) as gateway,
            joined(gateway, issuer.sign("ada")) as ada,
        ):
            for status_code in (500, 200):
                issuer.status = status_code
                await fetch_again(gateway)
                look(gateway)
                await check_open(ada, "ada")
            issuer.rotate("second")
            del issuer.keys["first"]
            await fetch_again(gateway)
            look(gateway)
            await ada.wait_closed()
            assert ada.close_code == TOKEN_EXPIRED


async def fetch_again(gateway: Gateway) -> None:
    assert gateway.tokens is not None
    (issuer,) = gateway.tokens._issuers
    await issuer.keys.refresh()


def test_keys_are_deleted_by_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('[tokens]\npath = "tokens"\n[pods.demo]\n')

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["token", *arguments, "--config", str(path)])
        output = capsys.readouterr()
        return code, output.out + output.err

    run("ada", "--expires", "1h")
    store = TokenStore(tmp_path / "tokens")
    (old,) = store.key_ids()
    code, text = run("--delete-key", "nothing")
    assert (code, old in text) == (2, True)
    code, text = run("--delete-key", old)
    (new,) = store.key_ids()  # there is always one that signs
    assert (code, text) == (0, f"deleted key {old}; signing with key {new}\n")
    assert new != old
    assert f"key {old} deleted" in run("--list")[1]
    assert f"keys: {new}" in run("--list")[1]
