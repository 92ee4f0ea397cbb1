"""The demo's memory: the memory agent, with the database file that `mcpp memory` uses."""

import tempfile
from pathlib import Path

import mcpp
from mcpp.client import local_pod
from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.bus.participant import MemoryAgent


def main() -> None:
    """Run the memory agent against the pod in the environment."""
    pod = local_pod.find()
    folder = Path(tempfile.mkdtemp()) if pod is None else pod.folder
    # Search by words only: an embedding model takes longer to load than the demo takes to start.
    with MemoryStore.open(folder / "memory.db", embedder="none") as store:
        mcpp.run(MemoryAgent(store, options=mcpp.Options(keep_trying=True)).participant)
