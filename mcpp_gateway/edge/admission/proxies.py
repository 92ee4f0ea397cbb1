"""The address of a client, also behind proxies (G-88).

Each proxy appends the address of its own client to `X-Forwarded-For`. So the header is read from
the right, and only as far as trusted proxies have written it: the rest is the client's own text.
"""

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from mcpp_gateway.edge.admission.origins import Headers

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_MAX_ENTRIES: Final = 16  # that are read of the header; its bytes are bounded with the request


class Proxies:
    """The proxies that are trusted to name the addresses of their clients."""

    def __init__(self, trusted: Sequence[str]) -> None:
        self._networks = tuple(map(ipaddress.ip_network, trusted))

    def client_address(self, peer: str, headers: Headers) -> str:
        """Return the address that a request comes from; `peer` is that of the connection."""
        direct = _parse(peer)
        if direct is None:
            return peer
        if self._is_trusted(direct):
            for text in _from_right(headers.get("x-forwarded-for", [])):
                found = _parse(text) if "%" not in text else None
                if found is None:
                    break
                if not self._is_trusted(found):
                    # Loopback of another machine is not this one, which metrics are for (G-44).
                    is_elsewhere = found.is_loopback and not direct.is_loopback
                    return str(direct if is_elsewhere else found)
        return str(direct)

    def _is_trusted(self, address: _Address) -> bool:
        return any(address in network for network in self._networks)


def _from_right(values: Sequence[str]) -> Iterator[str]:
    """Yield the last entries of a list, the last one first. It may be in several headers."""
    entries = ",".join(values).rsplit(",", _MAX_ENTRIES)[-_MAX_ENTRIES:]
    return (entry.strip(" \t") for entry in reversed(entries))


def _parse(text: str) -> _Address | None:
    """Return an address: that of IPv4, if it is mapped into IPv6."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
