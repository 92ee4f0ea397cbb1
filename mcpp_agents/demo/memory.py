"""The demo's memory: the memory agent as it is, with the file in which `mcpp memory` looks."""

import tempfile
from functools import partial
from pathlib import Path

import anyio

import mcpp
from mcpp import Options
from mcpp.client import local_pod
from mcpp.client.tasks import until_signal
from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.bus.participant import join


def main() -> None:
    """Run it as the demo does."""
    pod = local_pod.find()
    folder = Path(tempfile.mkdtemp()) if pod is None else pod.folder
    connect = partial(mcpp.connect, name="memory", options=Options(keep_trying=True))
    # By words alone: a model of meanings would take longer to load than the demo takes to begin.
    with MemoryStore.open(folder / "memory.db", embedder="none") as store:
        anyio.run(until_signal, lambda: join(connect, store))
