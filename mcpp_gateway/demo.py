"""The demo's agents, found through the entry-point group `mcpp.demo`: they run as processes.

Each is kept running: one that ends, however it ends, is started again. They are in sessions of
their own, so that Ctrl-C reaches the gateway alone and it ends them in its time; should the gateway
be killed, they find their standard input closed and end by themselves.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from mcpp.client.local_pod import LocalPod

_STOP_SECONDS: Final = 5.0
# An agent that lived this long was healthy; one that did not is started ever more slowly.
_HEALTHY_SECONDS: Final = 30.0
_LAST_PAUSE_SECONDS: Final = 10.0


@contextmanager
def agents(pod: LocalPod) -> Iterator[None]:
    """Run every agent of the demo beside the gateway, and end them with it."""
    found = sorted(entry_points(group="mcpp.demo"), key=lambda entry: entry.name)
    if not found:
        print(
            "mcpp up: there are no demo agents here yet; the pod is up without them",
            file=sys.stderr,
        )
    keepers = [_Keeper(entry, pod) for entry in found]
    try:
        for keeper in keepers:
            keeper.start()
        yield
    finally:
        for keeper in keepers:
            keeper.stop()
        for keeper in keepers:
            keeper.finish()


def end_with_parent(stop_seconds: float = _STOP_SECONDS) -> None:
    """Have this process end when whoever started it closes our standard input, or dies.

    One that is asked to end and does not is killed: nobody else is left to do that.
    """

    def wait() -> None:
        os.read(0, 1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(stop_seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


class _Keeper(threading.Thread):
    """Keeps one agent running. Owns its process."""

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
        """Start the agent, again and again, until it is told to stop."""
        failures = 0
        while (process := self._begin()) is not None:
            begun_at = time.monotonic()
            code = process.wait()
            if self._stopping.is_set():
                return
            print(
                f"mcpp up: the demo's {self._agent} has ended ({code}); starting it again",
                file=sys.stderr,
                flush=True,
            )
            is_healthy = time.monotonic() - begun_at > _HEALTHY_SECONDS
            failures = 0 if is_healthy else failures + 1
            self._stopping.wait(min(0.25 * 2**failures, _LAST_PAUSE_SECONDS))

    def stop(self) -> None:
        """Ask the agent to end, and start it no more."""
        with self._changing:
            self._stopping.set()
            if self._process is not None:
                self._process.terminate()

    def finish(self) -> None:
        """Wait until the agent has ended, and make it end where it does not."""
        self.join(_STOP_SECONDS)
        if self.is_alive() and self._process is not None:
            self._process.kill()
            self.join()

    def _begin(self) -> subprocess.Popen[bytes] | None:
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
