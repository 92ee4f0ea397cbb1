"""How the clients of a load speak to a gateway: little WebSocket, and envelopes from a mould."""

import base64
import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

import mcpp
from mcpp import Context
from mcpp_agents.bench.load import LoadError

# Ids are numbered in place, so that all envelopes of a run are equally long.
_PLACE: Final = "0000000000"
_TEXT: Final = 0x81
_MASKED: Final = 0x80


class GatewayWire:
    """The clients of a gateway. Their envelopes are `size` bytes long and go round the contexts."""

    senders_apart = False
    pulse = b"\x8a\x80\0\0\0\0"  # a pong that nobody asked for

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
        contexts: Sequence[Context | None] = (None,),
        filters: Sequence[str] = (),
        run: str = "bench",
        marked: bool = False,
    ) -> None:
        """Speak for whoever has the tokens, in turn, each with the filter of its turn, if any.

        `marked` counts envelopes by their ids, for a pod in which others speak too.
        """
        self._request = f"GET {path}{{}} HTTP/1.1\r\nHost: {host}\r\n"
        self._separator = "&" if "?" in path else "?"
        self._tokens = tokens
        self._filters = filters
        mark = f'"id":"{run}.'
        self.mark = mark.encode() if marked else None
        self.message_bytes = size + len(_header(size, 0))
        self._moulds = [
            [
                _mould(name, f"{run}.{index}", kind, payload or {}, context, size)
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
        """Tell whether the welcome is there: only then is everything that follows received."""
        head, end, rest = answer.partition(b"\r\n\r\n")
        if end and not head.startswith(b"HTTP/1.1 101 "):
            said = rest.decode(errors="replace").strip()
            hint = "; try fewer receivers" if b" 429 " in head else ""
            raise LoadError(f"the gateway says: {said}{hint}")
        return b"system/welcome" in rest

    def messages(self, sender: int, first: int, count: int) -> bytes:
        moulds = self._moulds[sender]
        if len(moulds) == 1:
            head, tail = moulds[0]
            return b"".join([b"%b%010d%b" % (head, n, tail) for n in range(first, first + count)])
        parts: list[bytes] = []
        for number in range(first, first + count):
            head, tail = moulds[number % len(moulds)]
            parts.append(b"%b%010d%b" % (head, number, tail))
        return b"".join(parts)


def _mould(
    sender: str,
    prefix: str,
    kind: str,
    payload: dict[str, object],
    context: Context | None,
    size: int,
) -> tuple[bytes, bytes]:
    """Return the bytes of a frame before and after the number in its envelope's id."""

    def text(padding: str) -> bytes:
        return mcpp.encode(
            mcpp.new_envelope(
                kind,
                {**payload, "text": padding},
                sender=sender,
                id=f"{prefix}.{_PLACE}",
                context=context,
            )
        )

    padding = size - len(text(""))
    if padding < 0:
        raise LoadError(f"an envelope takes at least {size - padding} bytes here")
    head, tail = text("x" * padding).split(_PLACE.encode(), 1)
    # A mask of zeros is a legal one: it saves the clients work, and the gateway none.
    return _header(size, _MASKED) + bytes(4) + head, tail


def _header(size: int, bit: int) -> bytes:
    if size < 126:
        return bytes((_TEXT, bit | size))
    if size < 65_536:
        return bytes((_TEXT, bit | 126)) + size.to_bytes(2)
    return bytes((_TEXT, bit | 127)) + size.to_bytes(8)
