"""Checks of `Host` and `Origin`: requests that a foreign web page could have caused (G-05)."""

import ipaddress
from collections.abc import Mapping
from typing import TypeAlias
from urllib.parse import urlsplit

from mcpp_gateway.config import Config
from mcpp_gateway.edge.admission.throttle import Denial

Headers: TypeAlias = Mapping[str, list[str]]  # names in lower case


class Origins:
    """The hosts and origins that requests may name."""

    def __init__(self, config: Config, port: int) -> None:
        scheme = "https" if config.gateway.tls_cert else "http"
        names = _own_names(config.gateway.host)
        own = {f"{scheme}://{name}:{port}" for name in names}
        if port == (443 if scheme == "https" else 80):
            own |= {f"{scheme}://{name}" for name in names}
        self._origins = own | set(config.gateway.allowed_origins)
        self._hosts = names | {_host_name(urlsplit(origin).netloc) for origin in self._origins}

    def check(self, headers: Headers) -> Denial | None:
        """Refuse a request whose `Host` or `Origin` is foreign."""
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._is_own_host(hosts[0]):
            return Denial(403, "this Host is not allowed; see allowed_origins")
        origins = headers.get("origin", [])
        if len(origins) > 1 or (origins and origins[0] not in self._origins):
            return Denial(403, "this Origin is not allowed; see allowed_origins")
        return None

    def _is_own_host(self, host: str) -> bool:
        name = _host_name(host)
        # A page that rebinds its name to this address sends that name, never an IP address.
        return name in self._hosts or _is_address(name)


def _own_names(host: str) -> set[str]:
    loopback = {"localhost", "127.0.0.1", "[::1]"}
    name = f"[{host}]" if ":" in host else host.lower()
    # A gateway that listens on all addresses listens on loopback too.
    everywhere = host in ("0.0.0.0", "::", "")
    return loopback | {name} if everywhere or is_loopback(host) else {name}


def _host_name(netloc: str) -> str:
    if netloc.startswith("["):
        return netloc.partition("]")[0].lower() + "]"
    return netloc.partition(":")[0].lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
