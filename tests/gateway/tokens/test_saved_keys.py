"""Keys of issuers over a restart: a gateway that begins while their key server is down."""

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from prometheus_client.parser import text_string_to_metric_families

from mcpp_gateway import config
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.tokens import key_cache
from mcpp_gateway.tokens.saved_keys import SavedKeys
from tests.gateway.operation.test_observing import metrics
from tests.gateway.sockets import BOUND, running
from tests.gateway.tokens.issuer import LoopbackIssuer
from tests.gateway.tokens.test_sockets_tokens import issuer_config, status

URL = "https://login.example.org/keys"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def issuer() -> Iterator[LoopbackIssuer]:
    with LoopbackIssuer().serving() as serving:
        yield serving


def kept_in(folder: Path, place: str) -> str:
    log = f'[log]\nkind = "file"\npath = "{folder}"\n'
    return {"log": log, "tokens": f'[tokens]\npath = "{folder}"\n', "memory": ""}[place]


@pytest.mark.anyio
@pytest.mark.rule("S-08")
@pytest.mark.parametrize(("place", "answer"), [("log", 101), ("tokens", 101), ("memory", 503)])
async def test_keys_are_good_over_a_restart_while_the_key_server_is_down(
    issuer: LoopbackIssuer, tmp_path: Path, place: str, answer: int
) -> None:
    folder = tmp_path / "data"
    text = kept_in(folder, place) + issuer_config(issuer)
    async with asyncio.timeout(4 * BOUND):
        async with running(text) as gateway:
            assert await status(gateway, issuer.sign("ada")) == 101
        issuer.status = 500
        async with running(text) as gateway:
            assert await status(gateway, issuer.sign("ada")) == answer
    files = list(folder.glob(".issuer-keys*"))
    assert [path.stat().st_mode & 0o777 for path in files] == [0o600] * (place != "memory")


@pytest.mark.anyio
@pytest.mark.rule("S-08")
async def test_metrics_show_how_old_keys_are(issuer: LoopbackIssuer, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    public = issuer.keys["first"].public_key()
    key.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    fixed = f'[issuers.fixed]\npublic_key = "{key}"\naudience = "mcpp"\n'
    text = kept_in(tmp_path, "log") + issuer_config(issuer) + fixed

    async def ages(gateway: Gateway) -> dict[str, float]:
        families = text_string_to_metric_families(await metrics(gateway.port))
        (found,) = (each for each in families if each.name == "mcpp_issuer_keys_age_seconds")
        return {sample.labels["issuer"]: sample.value for sample in found.samples}

    issuer.status = 500
    async with asyncio.timeout(4 * BOUND):
        async with running(text) as gateway:
            assert await ages(gateway) == {"company": math.inf}
        SavedKeys(tmp_path).save(issuer.address, issuer.key_set(), time.time() - 7_200)
        async with running(text) as gateway:
            (age,) = (await ages(gateway)).values()
            assert 7_200 <= age < 7_300
        issuer.status = 200
        async with running(text) as gateway:
            assert gateway.tokens is not None
            for cache in gateway.tokens._fetched.values():
                assert await cache.refresh()
            assert (await ages(gateway))["company"] < 60


@pytest.mark.anyio
@pytest.mark.rule("S-08")
async def test_a_restart_does_not_begin_the_day_of_the_keys_again(
    issuer: LoopbackIssuer, tmp_path: Path
) -> None:
    text = kept_in(tmp_path, "log") + issuer_config(issuer)
    day_ago = time.time() - key_cache.KEEP_SECONDS
    async with asyncio.timeout(4 * BOUND):
        for fetched, answer in ((day_ago + 60, 101), (day_ago - 1, 503)):
            issuer.status = 500
            SavedKeys(tmp_path).save(issuer.address, issuer.key_set(), fetched)
            async with running(text) as gateway:
                assert await status(gateway, issuer.sign("ada")) == answer


@pytest.mark.anyio
@pytest.mark.rule("S-08")
async def test_a_reload_that_changes_issuers_keeps_the_keys_of_the_others(
    issuer: LoopbackIssuer,
) -> None:
    text = issuer_config(issuer)
    async with asyncio.timeout(4 * BOUND), running(text) as gateway:
        assert await status(gateway, issuer.sign("ada")) == 101
        issuer.status = 500
        more = issuer.config("partner").replace("/keys", "/others")
        gateway.reconfigure(config.parse(text + more, {}))
        assert await status(gateway, issuer.sign("ada")) == 101


@pytest.mark.rule("S-08")
@pytest.mark.parametrize("trouble", ["damaged", "foreign", "writable", "link", "future"])
def test_saved_keys_that_cannot_be_trusted_are_not_used(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    saved, now = SavedKeys(tmp_path), time.time()
    key_set = LoopbackIssuer().key_set()
    saved.save(URL, key_set, now)
    assert saved.load(URL, now) is not None
    assert saved.load(URL + "?other", now) is None
    (path,) = tmp_path.iterdir()
    if trouble == "damaged":
        path.write_bytes(path.read_bytes()[:-20])
    elif trouble == "foreign":
        path.write_bytes(path.read_bytes().replace(b"example.org", b"example.net"))
    elif trouble == "writable":
        path.chmod(0o620)
    elif trouble == "link":
        path.symlink_to(path.rename(tmp_path / "target"))
    else:
        saved.save(URL, key_set, now + 3600)
    assert saved.load(URL, now) is None
    logged = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(logged) == (trouble in ("damaged", "writable", "link"))


def test_keys_that_cannot_be_saved_are_in_use_anyway(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    SavedKeys(tmp_path / "none").save(URL, LoopbackIssuer().key_set(), time.time())
    assert [record.message for record in caplog.records] == ["keys of an issuer cannot be saved"]
