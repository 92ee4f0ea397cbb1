"""Ports on which commands serve HTTP."""

import socket

from mcpp import McppError


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 means any free one. Raises McppError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        raise McppError(f"Cannot listen on {_bracketed(host)}:{port}: {error}") from error


def address_of(listener: socket.socket) -> str:
    """Return the host and the port of a listening socket, as in a URL."""
    host, port = listener.getsockname()[:2]
    return f"{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
