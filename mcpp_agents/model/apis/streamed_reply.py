"""A reply that arrives in pieces, and the events that carry them.

The events are read here and not by the APIs' clients: these fail on what servers that only imitate
an API send, such as `null` for a missing object, and accept a stream that ended early. So values
are read by `as_object`, `as_list` and `as_text`, for which a value of another type is an empty one.
"""

import json
from collections.abc import AsyncIterator, Hashable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mcpp.outcomes import Usage
from mcpp_agents.model.providers import OnText, ProviderError

DONE: Final = "[DONE]"


@dataclass(slots=True)
class StreamedCall:
    """A tool call as far as it has arrived. Arguments are JSON, in pieces or as a whole."""

    name: str = ""
    pieces: str = ""
    whole_arguments: str = ""

    @property
    def arguments(self) -> str:
        """The arguments so far; pieces count more than what stood at the beginning."""
        return self.pieces or self.whole_arguments

    def add(self, name: str, arguments: str) -> None:
        """Append the next pieces. A name that is repeated with every piece is added once."""
        if name != self.name:
            self.name += name
        self.pieces += arguments

    @property
    def is_closed(self) -> bool:
        """Whether the arguments are complete, so that a further name begins another call."""
        try:
            msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, UnicodeEncodeError):
            return False
        return True


@dataclass(slots=True)
class StreamedReply:
    """A reply as far as it has arrived. Owns its text and its calls."""

    on_text: OnText
    calls: dict[Hashable, StreamedCall] = field(default_factory=dict)
    tokens: int = 0
    counters: dict[str, int] = field(default_factory=dict)  # of which `tokens` is the sum
    usage: Usage = field(default_factory=Usage)
    stop_reason: str = ""
    is_complete: bool = False
    _text: list[str] = field(default_factory=list)
    _half: str = ""  # the first half of a character, whose second half is in the next piece

    @property
    def text(self) -> str:
        """The text so far. Half a character at its end is replaced by U+FFFD."""
        return "".join(self._text) + ("\N{REPLACEMENT CHARACTER}" if self._half else "")

    async def add_text(self, piece: str) -> None:
        """Append a piece of text and pass it on."""
        piece = self._half + piece
        self._half = piece[-1:] if "\ud800" <= piece[-1:] <= "\udbff" else ""
        piece = joined_surrogates(piece.removesuffix(self._half) if self._half else piece)
        if piece:
            self._text.append(piece)
            await self.on_text(piece)


def joined_surrogates(text: str) -> str:
    """Return a text with halves of characters joined, and single ones replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


async def read_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """Yield the JSON values of a stream of events, and DONE for its mark of the end.

    A body that is JSON instead of a stream is yielded as one value. Raises ProviderError for an
    error that the API reports, and ValueError or TypeError for what is no JSON object.
    """
    rest, data, other = b"", [], []
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif line:
                other.append(line)
            elif data:
                yield _read_event(b"\n".join(data))
                data, other = [], []
    if rest.startswith(b"data:"):
        data.append(rest[5:].strip())
        rest = b""
    if data:
        yield _read_event(b"\n".join(data))
    body = b"\n".join([*other, rest]).strip()
    if body.startswith(b"{"):
        yield _read_event(body)


def _read_event(data: bytes) -> Any:
    if data == DONE.encode():
        return DONE
    # msgspec refuses half a character, which a server may escape in two events.
    event = json.loads(data)
    if not isinstance(event, dict):
        raise TypeError(f"an event is {type(event).__name__}")
    error = event.get("error")
    if error:
        message = as_text(as_object(error).get("message")) or as_text(error)
        raise ProviderError(message[:300] or "the model's API reports an error")
    return event


def as_object(value: Any) -> dict[str, Any]:
    """Return a value that should be an object."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a value that should be a list; an object stands for a list of one."""
    return value if isinstance(value, list) else [value] if isinstance(value, dict) else []


def as_count(value: Any) -> int:
    """Return a value that should be a number of tokens, 0 for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def as_text(value: Any) -> str:
    """Return a value that should be a text; some servers send it as a list of parts."""
    if isinstance(value, str):
        return value
    return "".join(as_text(part.get("text")) for part in as_list(value) if isinstance(part, dict))


def as_json(value: Any) -> str:
    """Return arguments, which are a piece of JSON or, at some servers, an object."""
    return value if isinstance(value, str) else json.dumps(value) if value else ""
