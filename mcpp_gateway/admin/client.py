"""A client of the admin's interface."""

import http.client
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from mcpp.errors import AddressError, McppError
from mcpp.transports.tls import trust

_SECONDS: Final = 10.0
_MAX_BYTES: Final = 64 << 20


class AdminError(McppError):
    """The gateway cannot be reached, or does not answer as wanted."""


class AdminClient:
    """Asks one gateway. Opens a connection for each request."""

    def __init__(self, url: str, token: str, ca: str | None = None) -> None:
        """Trust the system's authorities, or only the one in the file `ca`. Raises AddressError."""
        self._token = token
        try:
            parts = urlsplit(url)
            scheme, self._host, self._port = parts.scheme, parts.hostname or "", parts.port
            self._host.encode("idna")
        except ValueError:  # a bracket without the other, or a port that is none
            scheme = self._host = ""
        is_host = self._host and not any(each <= " " for each in self._host)
        if scheme not in ("http", "https") or not is_host:
            raise AddressError(url, "it is not an address such as http://127.0.0.1:8787")
        self._tls = trust(url, ca)

    def get(self, name: str, query: Mapping[str, str]) -> Any:
        """Return what the gateway shows under a name."""
        text = urlencode(query, errors="surrogateescape")  # an argument may be no UTF-8
        return self._ask("GET", f"/admin/{name}?{text}", b"", dict[str, Any] | list[dict[str, Any]])

    def post(self, name: str, body: Mapping[str, Any]) -> Any:
        """Ask the gateway to act, and return what it says."""
        return self._ask("POST", f"/admin/{name}", json.dumps(body).encode(), dict[str, Any])

    def _ask(self, method: str, path: str, body: bytes, kind: Any) -> Any:
        host, port = self._host, self._port
        if self._tls is not None:
            line: http.client.HTTPConnection = http.client.HTTPSConnection(
                host, port, timeout=_SECONDS, context=self._tls
            )
        else:
            line = http.client.HTTPConnection(host, port, timeout=_SECONDS)
        headers = {"Authorization": f"Bearer {self._token}"}
        if body:
            headers["Content-Type"] = "application/json"
        try:
            line.request(method, path, body or None, headers)
            answer = line.getresponse()
            data = answer.read(_MAX_BYTES)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise AdminError(f"cannot reach the gateway: {error}") from None
        finally:
            line.close()
        if answer.status != 200:
            text = data.decode(errors="replace").strip()[:200]
            if (answer.status, text) == (404, "not found"):
                text += "; its configuration needs a section [admin]"
            raise AdminError(f"the gateway answered {answer.status}: {text}")
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise AdminError("the answer is not that of a gateway: check the address") from None
