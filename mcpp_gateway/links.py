"""The link that signs a browser in to the local pod, and how to ask a running gateway for one."""

import json
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit

from mcpp.client.local_pod import LocalPod
from mcpp_gateway.config import ConfigError

# After a few wrong tokens the gateway takes its time (G-06).
_ANSWER_SECONDS: Final = 10.0
# A token that was made just now may be unknown for a moment, until the gateway has read the file.
_ATTEMPTS: Final = 5


def link(pod: LocalPod, code: str) -> str:
    """Return the address of the inspector, with a code that signs in."""
    scheme = "https" if urlsplit(pod.url).scheme == "wss" else "http"
    return f"{scheme}://{urlsplit(pod.url).netloc}/#{code}"


def ask(pod: LocalPod, token: str) -> str:
    """Have the running gateway make a link for whoever has this token.

    Raises ConfigError where no gateway runs, or where it does not answer.
    """
    # Asked of the process that holds the pod: whoever else listens there must not see the token.
    if not pod.reload():
        raise ConfigError("no gateway runs here; start one with `mcpp up`")
    for _ in range(_ATTEMPTS):
        try:
            status, body = _get(pod, token)
        except (OSError, HTTPException) as error:
            raise ConfigError(f"the gateway does not answer: {error}") from None
        if status == 200:
            return link(pod, json.loads(body)["code"])
        if status != 401:
            break
    raise ConfigError(f"the gateway gives no link: {body.decode(errors='replace').strip()}")


def _get(pod: LocalPod, token: str) -> tuple[int, bytes]:
    address = urlsplit(pod.url)
    make = HTTPSConnection if address.scheme == "wss" else HTTPConnection
    connection = make(address.hostname or "", address.port, timeout=_ANSWER_SECONDS)
    try:
        connection.request("GET", "/invitation", headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
