"""Reports in the gateway's own log when a pod's log has no space left, and when it has again."""

import logging
from typing import Final

logger = logging.getLogger("mcpp.gateway")

# A disk that is full and has space again in turn is reported no more often.
_QUIET_SECONDS: Final = 60.0


class SpaceReport:
    """Whether one log has space, as reported last. Times are passed in."""

    def __init__(self, pod: str) -> None:
        self._pod = pod
        self._full_since: float | None = None
        self._reported = False  # whether the last line says that the log is full
        self._not_before = float("-inf")

    def check(self, now: float, *, accepting: bool) -> None:
        """Take note of whether there is room for participants' envelopes."""
        if accepting:
            if self._full_since is not None and self._reported:
                facts = {"pod": self._pod, "seconds": round(now - self._full_since, 1)}
                logger.warning("the log has space again", extra=facts)
            self._full_since, self._reported = None, False
            return
        if self._full_since is None:
            self._full_since = now
        if not self._reported and now >= self._not_before:
            self._reported, self._not_before = True, now + _QUIET_SECONDS
            logger.error(
                "no space left for the log: envelopes are refused", extra={"pod": self._pod}
            )
