"""Asks the gateway of a configuration for its health: `mcpp gateway --health`."""

import http.client
import ssl
from typing import Final

from mcpp.errors import McppError
from mcpp_gateway.config import Config, ConfigError

_SECONDS: Final = 2.0
_LOOPBACK: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class UnhealthyError(McppError):
    """The gateway does not answer, or does not admit participants now."""


def check_health(config: Config) -> None:
    """Ask the gateway of this machine whether it admits participants (G-43).

    Raises UnhealthyError if it does not, and ConfigError if its address is not known.
    """
    section = config.gateway
    if not section.port:
        raise ConfigError("gateway.port: 0 is any port, which only the gateway's log tells")
    host = _LOOPBACK.get(section.host, section.host)
    if section.tls_cert is None:
        line = http.client.HTTPConnection(host, section.port, timeout=_SECONDS)
    else:
        # Its certificate is for the names that clients use. Nothing secret is sent.
        tls = ssl.create_default_context()
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
        line = http.client.HTTPSConnection(host, section.port, timeout=_SECONDS, context=tls)
    try:
        line.request("GET", "/healthz")
        answer = line.getresponse()
        text = answer.read(200).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        where = f"{host}:{section.port}"
        raise UnhealthyError(f"no healthy gateway at {where}: {error!s}") from None
    finally:
        line.close()
    if answer.status != 200:
        raise UnhealthyError(f"the gateway answers {answer.status}: {text}")
