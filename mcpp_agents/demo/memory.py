"""The demo's memory: the memory agent, with the database file that `mcpp memory` uses."""

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
    """Run the memory agent against the pod in the environment."""
    pod = local_pod.find()
    folder = Path(tempfile.mkdtemp()) if pod is None else pod.folder
    connect = partial(mcpp.connect, name="memory", options=Options(keep_trying=True))
    # Search by words only: an embedding model takes longer to load than the demo takes to start.
    with MemoryStore.open(folder / "memory.db", embedder="none") as store:
        anyio.run(until_signal, lambda: join(connect, store))
