"""The demo's agents: processes, found through the entry-point group `mcpp.demo`.

An agent that exits is restarted. Agents run in process groups of their own, so that Ctrl-C reaches
only the gateway, which then stops them. If the gateway is killed, their standard input is closed
and they exit by themselves.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from mcpp.client.local_pod import LocalPod

_STOP_SECONDS: Final = 5.0
# An agent that ran this long was healthy; otherwise the pause before its restart doubles.
_HEALTHY_SECONDS: Final = 30.0
_MAX_PAUSE_SECONDS: Final = 10.0


@contextmanager
def agents(pod: LocalPod) -> Iterator[Callable[[], None]]:
    """Run all demo agents while the block runs; yield a function that stops them before its end."""
    found = sorted(entry_points(group="mcpp.demo"), key=lambda entry: entry.name)
    if not found:
        print(
            "mcpp up: no demo agents are installed; the pod runs without them",
            file=sys.stderr,
        )
    supervisors = [_Supervisor(entry, pod) for entry in found]

    def stop() -> None:
        for supervisor in supervisors:
            supervisor.stop()
        for supervisor in supervisors:
            supervisor.finish()

    try:
        for supervisor in supervisors:
            supervisor.start()
        yield stop
    finally:
        stop()


def end_with_parent(stop_seconds: float = _STOP_SECONDS) -> None:
    """Terminate this process when its parent closes our standard input or dies.

    If it has not exited after `stop_seconds`, it is killed.
    """

    def wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(stop_seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


class _Supervisor(threading.Thread):
    """Runs one agent and restarts it when it exits. Owns its process."""

    def __init__(self, entry: EntryPoint, pod: LocalPod) -> None:
        super().__init__(name=f"demo {entry.name}", daemon=True)
        run = f"from {entry.module} import {entry.attr}; {entry.attr}()"
        program = f"from {__name__} import end_with_parent; end_with_parent(); {run}"
        self._agent = entry.name
        self._command = [sys.executable, "-c", program]
        self._address = {"MCPP_URL": pod.url, "MCPP_TOKEN": pod.add(entry.name)}
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Start the agent, and restart it until `stop` is called."""
        failures = 0
        while (process := self._start_process()) is not None:
            begun_at = time.monotonic()
            code = process.wait()
            if self._stopping.is_set():
                return
            print(
                f"mcpp up: demo agent {self._agent} exited ({code}); restarting it",
                file=sys.stderr,
                flush=True,
            )
            is_healthy = time.monotonic() - begun_at > _HEALTHY_SECONDS
            failures = 0 if is_healthy else failures + 1
            self._stopping.wait(min(0.25 * 2**failures, _MAX_PAUSE_SECONDS))

    def stop(self) -> None:
        """Terminate the agent and do not restart it."""
        with self._changing:
            self._stopping.set()
            if self._process is not None:
                self._process.terminate()

    def finish(self) -> None:
        """Wait until the agent has exited, and kill it if it does not."""
        self.join(_STOP_SECONDS)
        if self.is_alive() and self._process is not None:
            self._process.kill()
            self.join()

    def _start_process(self) -> subprocess.Popen[bytes] | None:
        with self._changing:
            if self._stopping.is_set():
                return None
            self._process = subprocess.Popen(
                self._command,
                env=os.environ | self._address,
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
            return self._process
