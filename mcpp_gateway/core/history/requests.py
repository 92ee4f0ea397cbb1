"""Requests for history that are read outside of the pod, one at a time for a participant."""

from collections import deque
from typing import Final

from mcpp_gateway.core.effects import ReadHistory

MAX_WAITING: Final = 8  # of one participant


class HistoryRequests:
    """What each participant has asked for and not yet received. The first of each is being read."""

    __slots__ = ("_by_participant",)

    def __init__(self) -> None:
        self._by_participant: dict[str, deque[ReadHistory]] = {}

    def add(self, request: ReadHistory) -> ReadHistory | None:
        """Take a request; return it if it can be read now.

        Raises OverflowError if too many wait.
        """
        waiting = self._by_participant.setdefault(request.listener.participant, deque())
        if len(waiting) > MAX_WAITING:
            raise OverflowError
        waiting.append(request)
        return request if len(waiting) == 1 else None

    def finish(self, request: ReadHistory) -> ReadHistory | None:
        """Remove a request that was read, and return the participant's next one."""
        waiting = self._by_participant[request.listener.participant]
        waiting.popleft()
        if waiting:
            return waiting[0]
        del self._by_participant[request.listener.participant]
        return None
