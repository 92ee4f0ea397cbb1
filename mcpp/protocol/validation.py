"""msgspec's validation errors as a path and a reason that are safe to show.

msgspec quotes the peer's text in its messages and appends the path. So the path is parsed from the
end, and the rest is kept to one line of bounded length (E-21).
"""

import re
from typing import Final

MAX_REASON: Final = 200
_LOCATED: Final = re.compile(r"(.*) - at `(?:key` in `)?\$([^`]*)`", re.DOTALL)


def path_and_reason(error: Exception) -> tuple[str, str]:
    """Return where a value is invalid, as a path below `$`, and why."""
    message = str(error)
    located = _LOCATED.fullmatch(message)
    path, reason = (located[2], located[1]) if located else ("", message)
    return path, bounded_reason(reason)


def bounded_reason(reason: str) -> str:
    """Return a reason on one line of bounded length."""
    shown = "".join(character if character.isprintable() else "�" for character in reason)
    return shown if len(shown) <= MAX_REASON else shown[: MAX_REASON - 1] + "…"
