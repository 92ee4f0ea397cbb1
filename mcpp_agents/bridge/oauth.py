"""Signing in to a hosted MCP server: OAuth by a browser, with tokens kept in a file.

The person opens the address that is shown, signs in, and the browser brings the code back to a port
of this machine. Tokens are refreshed and used again at the next start.
"""

import logging
import os
import socket
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import parse_qs, urlsplit

import anyio
import httpx2
import msgspec
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.oauth2 import OAuthContext
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthMetadata,
    OAuthToken,
    ProtectedResourceMetadata,
)
from pydantic import BaseModel, ValidationError

from mcpp import McppError

_CALLBACK: Final = "/callback"
_SIGN_IN_SECONDS: Final = 170.0  # less than a server may take to start
_MAX_REQUEST_BYTES: Final = 16_384
_GONE: Final = (anyio.IncompleteRead, anyio.DelimiterNotFound, anyio.BrokenResourceError)
_ANSWER: Final = (
    "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n{}"
    " You can close this page.\n"
)

logger = logging.getLogger("mcpp.bridge")


ModelT = TypeVar("ModelT", bound=BaseModel)


class SignInError(McppError):
    """The person did not sign in, or the server refused it."""


def oauth(url: str, show: Callable[[str], None], folder: Path | None = None) -> httpx2.Auth:
    """Return authentication for a server: with the tokens that are kept, or by signing in.

    Args:
        url: the server's address.
        show: called with the address that the person has to open.
        folder: where tokens are kept; by default in the user's state folder.
    """
    file = TokenFile((folder or default_folder()) / f"{sha256(url.encode()).hexdigest()[:32]}.json")
    port = file.port or _free_port()
    browser = _Browser(port, show)
    metadata = OAuthClientMetadata.model_validate(
        {
            "client_name": "mcpp bridge",
            "redirect_uris": [f"http://127.0.0.1:{port}{_CALLBACK}"],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }
    )
    provider = OAuthClientProvider(url, metadata, file, browser.open, browser.wait_for_code)
    file.context = provider.context
    return provider


def default_folder() -> Path:
    """Return the folder of tokens, by the XDG convention."""
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "mcpp" / "oauth"


class _Kept(msgspec.Struct):
    client: dict[str, Any] | None = None
    tokens: dict[str, Any] | None = None
    expires_at: float | None = None
    # What the servers say of themselves: where tokens are refreshed, and for which resource.
    authorization: dict[str, Any] | None = None
    resource: dict[str, Any] | None = None


class TokenFile:
    """The tokens of one server in a file that only this user can read (0600).

    With them it keeps what the SDK needs to refresh them after a restart: when they expire, and
    where. Otherwise a person would have to sign in again at every start. `context` is the SDK's.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.context: OAuthContext | None = None

    @property
    def port(self) -> int | None:
        """The port of the registered redirection, if this client is registered."""
        uris = (self._read().client or {}).get("redirect_uris") or [""]
        return urlsplit(str(uris[0])).port

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens."""
        kept = self._read()
        tokens = _validated(OAuthToken, kept.tokens)
        if tokens is not None and self.context is not None:
            self.context.token_expiry_time = kept.expires_at
            self.context.oauth_metadata = _validated(OAuthMetadata, kept.authorization)
            self.context.protected_resource_metadata = _validated(
                ProtectedResourceMetadata, kept.resource
            )
        return tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep the tokens."""
        expires_at = None if tokens.expires_in is None else time.time() + tokens.expires_in
        context = self.context
        self._write(
            tokens=_dumped(tokens),
            expires_at=expires_at,
            authorization=_dumped(None if context is None else context.oauth_metadata),
            resource=_dumped(None if context is None else context.protected_resource_metadata),
        )

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the registration of this client."""
        return _validated(OAuthClientInformationFull, self._read().client)

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep the registration of this client."""
        self._write(client=_dumped(client_info))

    def _read(self) -> _Kept:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=_Kept)
        except (OSError, msgspec.DecodeError):
            return _Kept()

    def _write(self, **changed: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = msgspec.structs.replace(self._read(), **changed)
        new = self.path.with_suffix(f".{os.getpid()}")
        new.unlink(missing_ok=True)
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode(kept))
        new.replace(self.path)


class _Browser:
    """The person's browser: shows an address, and comes back with a code."""

    def __init__(self, port: int, show: Callable[[str], None]) -> None:
        self._port = port
        self._show = show
        self._state: list[str] = []
        self._listener: socket.socket | None = None

    async def open(self, url: str) -> None:
        """Show the address at which the person signs in."""
        try:
            self._listener = socket.create_server(("127.0.0.1", self._port))
        except OSError as error:
            raise SignInError(f"cannot listen on port {self._port}: {error}") from None
        self._state = parse_qs(urlsplit(url).query).get("state", [])
        self._show(url)

    async def wait_for_code(self) -> AuthorizationCodeResult:
        """Wait until the browser brings the code. Raises SignInError."""
        assert self._listener is not None
        found: dict[str, list[str]] = {}
        with anyio.move_on_after(_SIGN_IN_SECONDS):
            listener = await anyio.abc.SocketListener.from_socket(self._listener)
            async with listener, anyio.create_task_group() as tasks:

                async def serve(browser: SocketStream) -> None:
                    query = await self._receive(browser)
                    if query:
                        found.update(query)
                        tasks.cancel_scope.cancel()

                # At the same time: browsers also open connections that they do not use.
                await listener.serve(serve, tasks)
        if "code" not in found:
            reason = found.get("error_description") or found.get("error") or ["it took too long"]
            raise SignInError(f"signing in failed: {reason[0][:200]}")
        state, iss = found.get("state", [None])[0], found.get("iss", [None])[0]
        return AuthorizationCodeResult(code=found["code"][0], state=state, iss=iss)

    async def _receive(self, browser: SocketStream) -> dict[str, list[str]]:
        """Return the query of a callback, and answer it; nothing for any other request.

        Any page can have the browser request this port, but only the answer knows the state.
        """
        try:
            async with browser:
                with anyio.fail_after(10):
                    head = await BufferedByteReceiveStream(browser).receive_until(
                        b"\r\n\r\n", _MAX_REQUEST_BYTES
                    )
                    target = urlsplit(head.split(b" ", 2)[1].decode("latin-1"))
                    query = parse_qs(target.query)
                    if target.path != _CALLBACK or query.get("state", []) != self._state:
                        return {}
                    answer = "You are signed in." if "code" in query else "Signing in failed."
                    await browser.send(_ANSWER.format(answer).encode())
        except (*_GONE, OSError, IndexError, ValueError):
            return {}
        return query


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _dumped(model: BaseModel | None) -> dict[str, Any] | None:
    return None if model is None else model.model_dump(mode="json", exclude_none=True)


def _validated(model: type[ModelT], value: Any) -> ModelT | None:
    try:
        return None if value is None else model.model_validate(value)
    except ValidationError:
        return None
