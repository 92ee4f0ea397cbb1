"""A set of ids that forgets the oldest ones."""

from typing import Final

_MAX_IDS: Final = 4096


class RecentIds:
    """A set of ids that forgets the oldest ones beyond a limit."""

    def __init__(self, limit: int = _MAX_IDS) -> None:
        self._ids: dict[str, int] = {}
        self._added = 0
        self._limit = limit

    def add(self, id: str) -> None:
        """Add an id as the newest one."""
        self._added += 1
        self._ids.pop(id, None)
        self._ids[id] = self._added
        if len(self._ids) > self._limit:
            del self._ids[next(iter(self._ids))]

    def place(self, id: str) -> int:
        """Return a number that is larger the later an id was added, 0 if it was not."""
        return self._ids.get(id, 0)

    def __contains__(self, id: object) -> bool:
        return id in self._ids
