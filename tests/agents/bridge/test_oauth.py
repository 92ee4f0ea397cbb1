"""Tokens of hosted servers: kept for this user only, and refreshed after a restart."""

import json
import socket
import struct
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import anyio
import httpx2
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from mcpp.client.tasks import background
from mcpp_agents.bridge.oauth import oauth
from mcpp_agents.cli.listening import listen
from tests.agents.processes import BOUND

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]


@dataclass
class Authorization:
    """A resource, and its authorization server with an unusual address for tokens."""

    base: str = ""
    grants: list[str] = field(default_factory=list)
    refuses_refreshing: bool = False

    async def resource(self, request: Request) -> Response:
        if request.headers.get("authorization") == f"Bearer access-{len(self.grants)}":
            return Response("hello")
        challenge = f'Bearer resource_metadata="{self.base}/about"'
        return Response(status_code=401, headers={"www-authenticate": challenge})

    async def about(self, request: Request) -> Response:
        return JSONResponse(
            {"resource": f"{self.base}/mcp", "authorization_servers": [f"{self.base}/as"]}
        )

    async def metadata(self, request: Request) -> Response:
        return JSONResponse(
            {
                "issuer": f"{self.base}/as",
                "authorization_endpoint": f"{self.base}/as/authorize",
                "token_endpoint": f"{self.base}/as/odd/token",
                "registration_endpoint": f"{self.base}/as/register",
                "response_types_supported": ["code"],
                "code_challenge_methods_supported": ["S256"],
                "token_endpoint_auth_methods_supported": ["none"],
            }
        )

    async def register(self, request: Request) -> Response:
        return JSONResponse((await request.json()) | {"client_id": "us"}, status_code=201)

    async def authorize(self, request: Request) -> Response:
        query = {"code": "c", "state": request.query_params["state"]}
        return RedirectResponse(f"{request.query_params['redirect_uri']}?{urlencode(query)}")

    async def token(self, request: Request) -> Response:
        grant = str((await request.form())["grant_type"])
        if grant == "refresh_token" and self.refuses_refreshing:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        self.grants.append(grant)
        number = len(self.grants)
        return JSONResponse(
            {
                "access_token": f"access-{number}",
                "token_type": "Bearer",
                "expires_in": 3600,
                "refresh_token": f"refresh-{number}",
            }
        )


@asynccontextmanager
async def running() -> AsyncIterator[Authorization]:
    server = Authorization()
    routes = [
        Route("/mcp", server.resource),
        Route("/about", server.about),
        Route("/.well-known/oauth-authorization-server/as", server.metadata),
        Route("/as/register", server.register, methods=["POST"]),
        Route("/as/authorize", server.authorize),
        Route("/as/odd/token", server.token, methods=["POST"]),
    ]
    with listen("127.0.0.1", 0) as listener:
        server.base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = Starlette(routes=routes)
        config = uvicorn.Config(app, log_level="warning", lifespan="off", ws="none")
        async with background() as tasks:
            tasks.start_soon(uvicorn.Server(config)._serve, [listener])
            with anyio.fail_after(2 * BOUND):
                yield server


async def test_tokens_are_kept_for_this_user_and_refreshed_after_a_restart(tmp_path: Path) -> None:
    shown: list[str] = []
    folder = tmp_path / "state" / "oauth"

    def show(url: str) -> None:
        shown.append(url)
        threading.Thread(target=httpx2.get, args=(url,), kwargs={"follow_redirects": True}).start()

    async with running() as server:

        async def use() -> str:
            """Read the resource, as a bridge that was started an hour later."""
            for file in folder.glob("*"):
                kept = json.loads(file.read_bytes())
                file.write_text(json.dumps(kept | {"expires_at": kept["expires_at"] - 3601}))
            auth = oauth(f"{server.base}/mcp", show, folder)
            async with httpx2.AsyncClient(auth=auth, timeout=BOUND) as client:
                return (await client.get(f"{server.base}/mcp")).text

        assert await use() == "hello"
        assert (len(shown), server.grants) == (1, ["authorization_code"])
        [file] = folder.iterdir()
        assert file.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        assert await use() == "hello"
        assert await use() == "hello"
        assert (len(shown), server.grants[1:]) == (1, ["refresh_token"] * 2)
        assert "refresh-3" in file.read_text()
        assert file.stat().st_mode & 0o777 == 0o600
        # A refresh that is refused ends in signing in again.
        server.refuses_refreshing = True
        assert await use() == "hello"
        assert (len(shown), server.grants[-1]) == (2, "authorization_code")


async def test_only_the_browser_that_was_sent_to_sign_in_brings_the_code(tmp_path: Path) -> None:
    lines: list[socket.socket] = []

    def show(url: str) -> None:
        redirection = urlsplit(parse_qs(urlsplit(url).query)["redirect_uri"][0])
        address = ("127.0.0.1", redirection.port or 0)
        lines.append(socket.create_connection(address))  # never used
        with socket.create_connection(address) as reset:
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        for query in ("error=no", "code=evil", "code=evil&state=other"):
            lines.append(socket.create_connection(address))
            lines[-1].sendall(f"GET /callback?{query} HTTP/1.1\r\n\r\n".encode())
        threading.Thread(target=httpx2.get, args=(url,), kwargs={"follow_redirects": True}).start()

    async with running() as server:
        auth = oauth(f"{server.base}/mcp", show, tmp_path)
        async with httpx2.AsyncClient(auth=auth, timeout=BOUND) as client:
            assert (await client.get(f"{server.base}/mcp")).text == "hello"
    for line in lines:
        line.close()
    assert server.grants == ["authorization_code"]
