"""The demo's agents, found through the entry-point group `mcpp.demo`: they run as processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from typing import Final

from mcpp.local import LocalPod

_STOP_SECONDS: Final = 5.0


@contextmanager
def agents(pod: LocalPod) -> Iterator[None]:
    """Run every agent of the demo beside the gateway, and end them with it."""
    found = sorted(entry_points(group="mcpp.demo"), key=lambda entry: entry.name)
    if not found:
        print(
            "mcpp up: there are no demo agents here yet; the pod is up without them",
            file=sys.stderr,
        )
    processes = []
    try:
        for entry in found:
            address = {"MCPP_URL": pod.url, "MCPP_TOKEN": pod.add(entry.name)}
            program = f"from {entry.module} import {entry.attr}; {entry.attr}()"
            command = [sys.executable, "-c", program]
            processes.append(subprocess.Popen(command, env=os.environ | address))
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
