"""The port of a gateway: opens it, with TLS if configured, and closes it in order."""

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any, Final

from mcpp_gateway.config import Config, ConfigError

# Large enough for a thousand participants that reconnect at once.
_BACKLOG: Final = 4096
# asyncio uses its `backlog` as the number of connections to accept at a time, and logs an error for
# each of them when the process has no file descriptors left.
_ACCEPTED_AT_ONCE: Final = 16


class Listener:
    """The open port. Owns the listening sockets."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.port: int
        self._connect: Callable[[], asyncio.Protocol]
        self._host = ""
        self._has_tls = False
        self._loop = loop
        self._servers: list[asyncio.Server] = []
        self.certificate: ssl.SSLContext | None = None
        self._local: asyncio.Server | None = None  # without TLS, for processes of this machine

    @property
    def sockets(self) -> list[socket.socket]:
        """The listening sockets."""
        return [socket for server in self._servers for socket in server.sockets]

    async def open(
        self,
        config: Config,
        connect: Callable[[], asyncio.Protocol],
        inherited: Sequence[socket.socket] = (),
        certificate: ssl.SSLContext | None = None,
    ) -> None:
        """Listen for connections, on sockets of another process if it has left some.

        `certificate` is the configuration's, if it was read before. Raises ConfigError if listening
        is not possible.
        """
        section = config.gateway
        tls = self.certificate = certificate or read_certificate(config)
        if tls is not None:
            tls.sni_callback = self._choose_certificate
        options: dict[str, Any] = {
            "ssl": tls,
            # Half for TLS and half for the upgrade: `handshake_seconds` in all.
            "ssl_handshake_timeout": section.handshake_seconds / 2 if tls else None,
            "backlog": _ACCEPTED_AT_ONCE,
        }
        self._connect, self._host, self._has_tls = connect, section.host, tls is not None
        try:
            for each in inherited:
                each.setblocking(False)
                server = await self._loop.create_server(connect, sock=each, **options)
                self._servers.append(server)
            if not inherited:
                host, port = section.host, section.port
                server = await self._loop.create_server(
                    connect, host, port, reuse_address=True, **options
                )
                self._servers.append(server)
        except OSError as error:
            raise ConfigError(_explain(error, section.host, section.port)) from None
        except ValueError:  # UnicodeError is one
            raise ConfigError("gateway.host: not a valid host name") from None
        for each in self.sockets:
            with socket.socket(fileno=os.dup(each.fileno())) as same:
                same.listen(_BACKLOG)
        self.port = self.sockets[0].getsockname()[1]

    def next_certificate(self, config: Config) -> ssl.SSLContext | None:
        """Return the certificate of a new configuration. Raises ConfigError."""
        if (self.certificate is None) != (config.gateway.tls_cert is None):
            raise ConfigError("gateway.tls_cert: TLS is turned on and off by a restart")
        return read_certificate(config)

    def use_certificate(self, certificate: ssl.SSLContext | None) -> None:
        """Use a certificate for connections from now on."""
        self.certificate = certificate

    async def local_url(self) -> str:
        """Return an address at which a process of this machine can join.

        With TLS it is a port of its own on loopback, since the certificate names another host.
        """
        if self._has_tls:
            self._local = await self._loop.create_server(self._connect, "127.0.0.1", 0)
            return f"ws://127.0.0.1:{self._local.sockets[0].getsockname()[1]}/ws"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self._host, self._host)
        return f"ws://{f'[{host}]' if ':' in host else host}:{self.port}/ws"

    async def close(self) -> None:
        """Accept no more connections."""
        if self._local is not None:
            self._local.close()
        if isinstance(self._loop, asyncio.SelectorEventLoop):
            # Closing an asyncio server leaves connections that were accepted in this tick open and
            # unanswered (gh-109564), so they are handed over first.
            for each in self.sockets:
                self._loop.remove_reader(each)
            await asyncio.sleep(0)
        for server in self._servers:
            server.close()
        self._servers.clear()

    def _choose_certificate(
        self, line: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext
    ) -> None:
        # The servers keep the context that they began with. Loading a second certificate into it
        # would spoil it if the files changed meanwhile.
        if self.certificate is not None:
            line.context = self.certificate


def read_certificate(config: Config) -> ssl.SSLContext | None:
    """Return what serves with a configuration's certificate, None without TLS.

    Raises ConfigError if the files cannot be used.
    """
    cert, key = config.gateway.tls_cert, config.gateway.tls_key
    if cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ValueError) as error:
        reason = f"cannot load {cert!r} with {key!r}: {error}"
        raise ConfigError(f"gateway.tls_cert: {reason}") from None
    return context


def _explain(error: OSError, host: str, port: int) -> str:
    if isinstance(error, socket.gaierror):
        return f"gateway.host: {host!r} is not a host name or address of this machine"
    if error.errno == errno.EADDRINUSE:
        return f"gateway.port: {port} is in use; stop the other process or choose a --port"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
