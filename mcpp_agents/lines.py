"""Lines of JSON-RPC messages, as MCP's stdio transport has them, of bounded length."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

# Eight times what a gateway accepts in an envelope by default.
MAX_LINE_BYTES: Final = 8 * 1024 * 1024
# What is kept of a longer line, at each end, to find the id of its message.
_KEPT_BYTES: Final = 4096

# At the top level an id comes before or after the result: `{"jsonrpc":"2.0","id":7,…`, `…,"id":7}`.
_ID: Final = r'"id"\s*:\s*(-?[0-9]{1,18}|"[^"\\]{1,128}")'
_MORE: Final = r'"jsonrpc"\s*:\s*"2\.0"'
_find_first_id: Final = re.compile(rf"\s*\{{\s*(?:{_MORE}\s*,\s*)?{_ID}\s*,").match
_find_last_id: Final = re.compile(rf",\s*{_ID}\s*(?:,\s*{_MORE}\s*)?\}}\s*\Z").search
_END_CHARACTERS: Final = 512


@dataclass(slots=True)
class Lines:
    """Splits bytes into lines. Of a line that is too long it keeps both ends."""

    max_bytes: int = MAX_LINE_BYTES
    _parts: list[bytes] = field(default_factory=list)
    _size: int = 0
    _tail: bytes = b""

    def split(self, chunk: bytes) -> Iterator[tuple[bytes, int]]:
        """Add bytes; yield each complete line with its length, also where less of it is kept."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._add(chunk[start:end])
            yield b"".join(self._parts) + self._tail, self._size
            self._parts, self._size, self._tail = [], 0, b""
            start = end + 1
        self._add(chunk[start:])

    def _add(self, part: bytes) -> None:
        was_long = self._size > self.max_bytes
        self._size += len(part)
        if self._size <= self.max_bytes:
            self._parts.append(part)
            return
        if not was_long:
            whole = b"".join(self._parts)
            self._parts, part = [whole[:_KEPT_BYTES] + b" "], whole[_KEPT_BYTES:] + part
        self._tail = (self._tail + part)[-_KEPT_BYTES:]


def parse_line(line: str | bytes) -> Any:
    """Return the JSON value of a line, None if it has none. Lone surrogates become U+FFFD.

    Programs in JavaScript write them where they have cut a text within a character.
    """
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False, allow_nan=False)
        return json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError):
        return None


def find_id(line: bytes) -> int | str | None:
    """Return the id of a message that cannot be read, if it is where programs write it."""
    head = line[:_END_CHARACTERS].decode(errors="replace")
    tail = line[-_END_CHARACTERS:].decode(errors="replace")
    found = _find_first_id(head) or _find_last_id(tail)
    return None if found is None else json.loads(found[1])
