"""Builds logs for tests: short methods for participants' actions, predictable ids and images."""

import base64
from collections.abc import Iterable
from typing import Any

from mcpp import Envelope, new_envelope
from mcpp.protocol.envelope import Context

TS = "2026-01-01T00:00:00Z"


def text_result(text: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], **more}


def png(width: int, height: int, padding: int = 60) -> str:
    """Return a base64 PNG header with that size, padded."""
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return base64.b64encode(head + size + bytes(padding)).decode()


def jpeg(width: int, height: int, before: int = 0) -> str:
    """Return a base64 JPEG of that size, with `before` bytes of profile before its frame."""
    profile = b"\xff\xe2" + (before + 2).to_bytes(2, "big") + bytes(before)
    size = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    frame = b"\xff\xff\xc2\0\x11\x08" + size + b"\x03\x01\x22\0\x02\x11\x01\x03\x11\x01"
    return base64.b64encode(b"\xff\xd8" + profile + frame + b"\xff\xd9").decode()


def webp(form: str, width: int, height: int) -> str:
    """Return a base64 WebP of that size in one of its three formats."""
    side = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = {
        "VP8 ": bytes(3)
        + b"\x9d\x01\x2a"
        + (width | height << 16).to_bytes(4, "little")
        + bytes(8),
        "VP8L": b"\x2f" + (width - 1 | (height - 1) << 14).to_bytes(4, "little") + bytes(8),
        "VP8X": bytes(4) + side + bytes(8),
    }[form]
    chunk = form.encode() + len(body).to_bytes(4, "little") + body
    head = b"RIFF" + (len(chunk) + 4).to_bytes(4, "little") + b"WEBP"
    return base64.b64encode(head + chunk).decode()


class LogBuilder:
    """Collects envelopes. `call` returns the call's id, `answer` the response's."""

    def __init__(self) -> None:
        self.envelopes: list[Envelope] = []
        self._asked: dict[str, Envelope] = {}

    def send(
        self,
        kind: str,
        payload: Any,
        sender: str,
        *,
        to: Iterable[str] | None = None,
        correlation_id: str | None = None,
        context: Context | str | None = None,
        id: str | None = None,
    ) -> str:
        envelope = new_envelope(
            kind,
            payload,
            sender=sender,
            to=to,
            correlation_id=correlation_id,
            context=context,
            id=id or f"e{len(self.envelopes)}",
            ts=TS,
        )
        self.envelopes.append(envelope)
        return envelope.id

    def chat(self, sender: str, text: str = "Fine.", **more: Any) -> str:
        return self.send("chat", {"text": text}, sender, **more)

    def reflect(self, sender: str, thought: str, context: Context | str) -> str:
        return self.send("reflection", {"thought": thought}, sender, context=context)

    def conclude(self, sender: str, decision: str, context: Context | str) -> str:
        return self.send("conclusion", {"decision": decision}, sender, context=context)

    def call(
        self,
        tool: str = "search_records",
        arguments: dict[str, Any] | None = None,
        *,
        sender: str = "analyst",
        server: str | list[str] | None = "crm",
        **more: Any,
    ) -> str:
        call = f"e{len(self.envelopes)}"
        params = {"name": tool, "arguments": arguments or {}}
        payload = {"jsonrpc": "2.0", "id": call, "method": "tools/call", "params": params}
        to = [server] if isinstance(server, str) else server
        self.send(f"mcp/request:tools/call:{tool}", payload, sender, to=to, id=call, **more)
        self._asked[call] = self.envelopes[-1]
        return call

    def answer(
        self, call: str, result: dict[str, Any] | None = None, *, sender: str = "", **more: Any
    ) -> str:
        request = self._asked[call]
        tool = request.kind.split(":", 2)[2]
        return self.send(
            f"mcp/response:tools/call:{tool}",
            {"jsonrpc": "2.0", "id": call, "result": result or text_result("ok")},
            sender or (request.to or ("server",))[0],
            to=[request.sender],
            correlation_id=call,
            context=more.pop("context", request.context),
            **more,
        )

    def fail(self, call: str, message: str = "broken") -> str:
        return self.answer(call, text_result(message, isError=True))

    def run(self, tool: str, arguments: dict[str, Any], result: dict[str, Any], **more: Any) -> str:
        """Make a call, answer it, and return the response's id."""
        return self.answer(self.call(tool, arguments, **more), result)
