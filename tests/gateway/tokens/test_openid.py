"""Single sign-on: a token of a real OpenID provider, from npm, opens a pod."""

import asyncio
import json
import shutil
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import mcpp
from tests.gateway.sockets import BOUND, config_text, running

ROOT = Path(__file__).parents[3]
TOOLS = ROOT / ".mcp-servers"
NODE = shutil.which("node")
PROVIDER = Path(__file__).with_name("openid_provider.mjs")
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(
        NODE is None or not (TOOLS / "node_modules" / "oidc-provider").exists(),
        reason="needs `make setup-mcp` with npm",
    ),
]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def provider() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        "--input-type=module",
        "-e",
        PROVIDER.read_text(),
        cwd=TOOLS,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(3 * BOUND):
            port = int(await process.stdout.readline())
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await process.wait()


def access_token(url: str) -> str:
    fields = {"grant_type": "client_credentials", "resource": "urn:mcpp"}
    request = urllib.request.Request(f"{url}/token", urllib.parse.urlencode(fields).encode())
    secret = b64encode(b"corp-ada:a-secret-for-this-test").decode()
    request.add_header("Authorization", f"Basic {secret}")
    with urllib.request.urlopen(request, timeout=BOUND) as answer:
        found: str = json.load(answer)["access_token"]
    return found


@pytest.mark.rule("S-01", "S-03")
async def test_a_token_of_an_openid_provider_opens_a_pod() -> None:
    async with asyncio.timeout(6 * BOUND), provider() as url:
        issuer = (
            f'\n[issuers.company]\njwks_url = "{url}/jwks"\naudience = "urn:mcpp"\n'
            'issuer = "http://127.0.0.1"\n'
            '[issuers.company.allow]\nparticipants = ["corp-*"]\n'
            'capabilities = [{ kind = "chat" }]\n'
        )
        async with running(config_text() + issuer) as gateway:
            pod = f"ws://127.0.0.1:{gateway.port}/ws?pod=demo"

            async def renew() -> str:
                return await asyncio.to_thread(access_token, url)

            async with mcpp.connect(pod, token=renew) as ada:
                assert ada.me == "corp-ada"
                await ada.send("chat", "signed in")
