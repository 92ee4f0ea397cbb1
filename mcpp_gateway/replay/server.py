"""A gateway that serves one recording."""

import asyncio
import socket
import ssl
from collections.abc import Sequence
from typing import Final

import uuid6

from mcpp_gateway.config import Config
from mcpp_gateway.core.effects import ReadHistory
from mcpp_gateway.core.journal import Journal
from mcpp_gateway.core.pod import PodCore
from mcpp_gateway.core.replay.pod import ReplayPod
from mcpp_gateway.edge.server import Gateway
from mcpp_gateway.replay.recording import LogRecording
from mcpp_gateway.storage.history_reader import HistoryReader
from mcpp_gateway.storage.log_store import LogStore

# The time between two steps: a dense recording is played in portions, and a change of the speed is
# noticed soon.
_MIN_STEP_SECONDS: Final = 0.02
_MAX_STEP_SECONDS: Final = 0.1


class ReplayGateway(Gateway):
    """Serves the replay of a recording. Owns the timer that plays it, and the history reader."""

    def __init__(
        self,
        config: Config,
        loop: asyncio.AbstractEventLoop,
        recording: LogRecording,
        speed: float,
    ) -> None:
        self._recording = recording
        self._speed = speed
        self._step_timer: asyncio.TimerHandle | None = None
        super().__init__(config, loop)
        self._history = HistoryReader(loop, self.hub.clock, self.hub.perform_all)

    async def listen(
        self,
        inherited: Sequence[socket.socket] = (),
        certificate: ssl.SSLContext | None = None,
    ) -> None:
        """Open the port and begin to play."""
        await super().listen(inherited, certificate)
        self._step()

    async def drain(self, *, handing_over: bool = False) -> None:
        """Stop playing and close all connections."""
        if self._step_timer is not None:
            self._step_timer.cancel()
        self._history.close()
        await super().drain(handing_over=handing_over)

    def _open_logs(self) -> LogStore | None:
        return None

    def _new_pod(self, name: str, config: Config) -> PodCore:
        return ReplayPod(
            name,
            config.pods[name],
            config.limits,
            new_id=lambda: str(uuid6.uuid7()),
            recording=self._recording,
            speed=self._speed,
        )

    def _read_history(self, request: ReadHistory) -> None:
        pod = request.session.peer.pod
        self._history.read(pod, _PlayedLog(self._recording, pod.journal), request)

    def _step(self) -> None:
        wait = _MAX_STEP_SECONDS
        for pod in self.pods.values():
            assert isinstance(pod, ReplayPod)
            now = self.hub.clock()
            self.hub.perform_all(pod.advance(now))
            due = pod.next_due_seconds(now)
            wait = wait if due is None else min(wait, due)
        self._step_timer = self.loop.call_later(max(wait, _MIN_STEP_SECONDS), self._step)


class _PlayedLog:
    """The part of a recording that was played so far, for pages of history."""

    def __init__(self, recording: LogRecording, journal: Journal) -> None:
        self.log = recording.log
        self.index = recording.index
        self._journal = journal

    def readable(self) -> tuple[int, int]:
        return self._journal.start, self._journal.committed
