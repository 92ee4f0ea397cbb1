"""Sign-in links: their format, and requesting one from the running gateway."""

import json
import os
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

from mcpp.client.local_pod import LocalPod
from mcpp.transports.tls import trust
from mcpp_gateway.config import ConfigError

# The gateway delays its answers after a few wrong tokens (G-06).
_ANSWER_SECONDS: Final = 10.0


def link(pod: LocalPod, code: str) -> str:
    """Return the URL of the inspector with a code that signs a browser in."""
    scheme = "https" if urlsplit(pod.url).scheme == "wss" else "http"
    return f"{scheme}://{urlsplit(pod.url).netloc}/#{code}"


def request_link(pod: LocalPod, token: str) -> str:
    """Request a link for the participant of this token from the running gateway.

    Raises ConfigError if no gateway is running, or if it does not answer.
    """
    # Only if the pod's own process is running: no other listener on the port may see the token.
    if not pod.reload():
        raise ConfigError("no gateway is running here; start one with `mcpp up`")
    try:
        status, body = _get(pod, token)
    except (OSError, HTTPException) as error:
        raise ConfigError(f"the gateway did not answer: {error}") from None
    if status == 200:
        return link(pod, json.loads(body)["code"])
    raise ConfigError(f"the gateway did not issue a link: {body.decode(errors='replace').strip()}")


def _get(pod: LocalPod, token: str) -> tuple[int, bytes]:
    address = urlsplit(pod.url)
    host, tls = address.hostname or "", trust(pod.url, os.environ.get("MCPP_CA"))
    if tls is None:
        connection = HTTPConnection(host, address.port, timeout=_ANSWER_SECONDS)
    else:
        connection = HTTPSConnection(host, address.port, timeout=_ANSWER_SECONDS, context=tls)
    try:
        connection.request("GET", "/invitation", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
