"""The live parts that a session sends: without an echo, and given up where they are refused."""

from typing import Final, TypeVar

from mcpp.payloads import Error

T = TypeVar("T")

_REMEMBERED_PARTS: Final = 256
_REMEMBERED_STREAMS: Final = 64


class LiveParts:
    """The parts sent lately, and the streams that the gateway does not relay. Owns both."""

    __slots__ = ("_refused", "_sent")

    def __init__(self) -> None:
        self._sent: dict[str, str] = {}  # stream of each part
        self._refused: dict[str, None] = {}

    def may_send(self, stream: str) -> bool:
        """Return whether the gateway has not refused this stream yet."""
        return stream not in self._refused

    def add(self, part: str, stream: str) -> None:
        """Remember a part that is sent now."""
        _remember(self._sent, part, stream, _REMEMBERED_PARTS)

    def refuse(self, part: str, details: Error) -> bool:
        """Take a refusal; return whether it was that of a live part."""
        stream = self._sent.get(part)
        if stream is None:
            return False
        if details.error != "rate_limited":
            _remember(self._refused, stream, None, _REMEMBERED_STREAMS)
        return True


def _remember(among: dict[str, T], key: str, value: T, most: int) -> None:
    among[key] = value
    if len(among) > most:
        del among[next(iter(among))]
