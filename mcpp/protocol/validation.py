"""What msgspec says of a value that does not fit, as a path and a reason that are safe to show.

msgspec quotes a peer's text in its sentences and puts the path behind it. So the path is read from
the end, and what is quoted is kept to one line and to a length (E-21).
"""

import re
from typing import Final

MAX_REASON: Final = 200
_PLACE: Final = re.compile(r"(.*) - at `(?:key` in `)?\$([^`]*)`", re.DOTALL)


def locate(error: Exception) -> tuple[str, str]:
    """Return where a value does not fit, as a path below `$`, and why."""
    sentence = str(error)
    place = _PLACE.fullmatch(sentence)
    path, reason = (place[2], place[1]) if place else ("", sentence)
    shown = "".join(character if character.isprintable() else "�" for character in reason)
    return path, shown if len(shown) <= MAX_REASON else shown[: MAX_REASON - 1] + "…"
