"""The playhead: how far a recording has been played, given the clock."""

from typing import Literal

State = Literal["playing", "paused", "ended"]


class Playhead:
    """Maps the clock to recorded time. Owns state and speed."""

    def __init__(self, speed: float, recorded: float) -> None:
        self.state: State = "paused"
        self._speed = speed
        self._recorded = recorded  # the recorded time that was reached at `_since`
        self._since = 0.0

    @property
    def speed(self) -> float:
        """How many recorded seconds pass in one second."""
        return self._speed

    def recorded(self, now: float) -> float:
        """Return the recorded time that is reached now."""
        if self.state != "playing":
            return self._recorded
        return self._recorded + max(0.0, now - self._since) * self._speed

    def seek(self, recorded: float, now: float) -> None:
        """Go to a recorded time; the state stays."""
        self._recorded, self._since = recorded, now

    def set_state(self, state: State, now: float) -> None:
        """Play, pause or end from here on."""
        self.seek(self.recorded(now), now)
        self.state = state

    def set_speed(self, speed: float, now: float) -> None:
        """Go on with another speed."""
        self.seek(self.recorded(now), now)
        self._speed = speed
