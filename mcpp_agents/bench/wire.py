"""The gateway's wire protocol for the load generator: minimal WebSocket, prebuilt envelopes."""

import base64
import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import mcpp
from mcpp_agents.bench.load import LoadError

# A number of fixed width is part of the id, so that all envelopes of a run have the same length.
_PLACEHOLDER: Final = "0000000000"
_TEXT: Final = 0x81
_MASKED: Final = 0x80


class GatewayWire:
    """Clients of a gateway. Their envelopes have `size` bytes and use the contexts in turn."""

    separate_senders = False
    keepalive = b"\x8a\x80\0\0\0\0"  # an unsolicited pong

    def __init__(
        self,
        host: str,
        path: str,
        tokens: Sequence[str],
        *,
        senders: Sequence[str],
        size: int = 400,
        kind: str = "chat",
        payload: dict[str, object] | None = None,
        contexts: Sequence[mcpp.Context | None] = (None,),
        filters: Sequence[str] = (),
        run: str = "bench",
        marked: bool = False,
    ) -> None:
        """Join with the tokens and filters in turn.

        `marked` counts envelopes by their ids, for a pod in which other participants send too.
        """
        self._request = f"GET {path}{{}} HTTP/1.1\r\nHost: {host}\r\n"
        self._separator = "&" if "?" in path else "?"
        self._tokens = tokens
        self._filters = filters
        mark = f'"id":"{run}.'
        self.mark = mark.encode() if marked else None
        self.message_bytes = size + len(_header(size, 0))
        self._templates = [
            [
                _template(name, f"{run}.{index}", kind, payload or {}, context, size)
                for context in contexts
            ]
            for index, name in enumerate(senders)
        ]

    def greeting(self, index: int) -> bytes:
        query = ""
        if self._filters:
            query = f"{self._separator}filter={quote(self._filters[index % len(self._filters)])}"
        key = base64.b64encode(os.urandom(16)).decode()
        return (
            f"{self._request.format(query)}Upgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Authorization: Bearer {self._tokens[index % len(self._tokens)]}\r\n\r\n"
        ).encode()

    def is_greeted(self, answer: bytes) -> bool:
        """Return whether the welcome has arrived, after which every envelope is received."""
        head, end, rest = answer.partition(b"\r\n\r\n")
        if end and not head.startswith(b"HTTP/1.1 101 "):
            reason = rest.decode(errors="replace").strip()
            hint = "; try fewer receivers" if b" 429 " in head else ""
            raise LoadError(f"the gateway refused a connection: {reason}{hint}")
        return b"system/welcome" in rest

    def messages(self, sender: int, first: int, count: int) -> bytes:
        templates = self._templates[sender]
        if len(templates) == 1:
            head, tail = templates[0]
            return b"".join([b"%b%010d%b" % (head, n, tail) for n in range(first, first + count)])
        parts: list[bytes] = []
        for number in range(first, first + count):
            head, tail = templates[number % len(templates)]
            parts.append(b"%b%010d%b" % (head, number, tail))
        return b"".join(parts)


def _template(
    sender: str,
    prefix: str,
    kind: str,
    payload: dict[str, object],
    context: mcpp.Context | None,
    size: int,
) -> tuple[bytes, bytes]:
    """Return the bytes of a frame before and after the number in the envelope's id."""

    def text(padding: str) -> bytes:
        return mcpp.encode(
            mcpp.new_envelope(
                kind,
                {**payload, "text": padding},
                sender=sender,
                id=f"{prefix}.{_PLACEHOLDER}",
                context=context,
            )
        )

    padding = size - len(text(""))
    if padding < 0:
        raise LoadError(f"an envelope needs at least {size - padding} bytes here")
    head, tail = text("x" * padding).split(_PLACEHOLDER.encode(), 1)
    # A mask of zeros is valid; it saves work for the clients, and none for the gateway.
    return _header(size, _MASKED) + bytes(4) + head, tail


def _header(size: int, bit: int) -> bytes:
    if size < 126:
        return bytes((_TEXT, bit | size))
    if size < 65_536:
        return bytes((_TEXT, bit | 126)) + size.to_bytes(2)
    return bytes((_TEXT, bit | 127)) + size.to_bytes(8)
