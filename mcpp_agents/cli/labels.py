"""Short names of contexts: a title, or type and the end of an id; no two contexts share one.

Participants choose ids and titles, so a context could pass itself off as another one. Where a name
is taken by another context, more of the id is shown.
"""

from collections.abc import Iterator
from typing import Final

_CHARACTERS: Final = 6
# A flood of contexts takes no more memory than this; the oldest names are given away then.
_MAX_LABELS: Final = 20_000


class ContextLabels:
    """Gives contexts their names. Owns the names that were given, as they may have been printed."""

    def __init__(self) -> None:
        self._owners: dict[str, str] = {}  # by name: the id

    def __call__(self, id: str, type: str = "", title: str | None = None) -> str:
        """Return a name that no other context has; the same one for the same arguments."""
        for short in _short_forms(id, has_title=title is not None):
            label = f"{type}{short}" if title is None else f"{title} {short}".rstrip()
            # The end of an id is not shared among types, either.
            if self._takes(id, label) and (not short or self._takes(id, short)):
                return label
        raise AssertionError("there is always another form")

    def _takes(self, id: str, name: str) -> bool:
        taken = self._owners.setdefault(name, id) == id
        if len(self._owners) > _MAX_LABELS:
            del self._owners[next(iter(self._owners))]
        return taken


def _short_forms(id: str, *, has_title: bool) -> Iterator[str]:
    if has_title:
        yield ""
    for length in range(_CHARACTERS, max(_CHARACTERS, len(id)) + 1):
        yield f"#{id[-length:]}"
    number = 2
    while True:
        yield f"#{id}~{number}"
        number += 1
