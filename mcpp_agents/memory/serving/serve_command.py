"""`mcpp memory serve`: the MCP server as a process, over stdio or HTTP."""

import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import anyio

from mcpp.cli.extras import importing
from mcpp_agents.cli.listening import address_of, listen
from mcpp_agents.memory.serving import mcp_server
from mcpp_agents.memory.serving.credentials import Credentials
from mcpp_agents.memory.store import MemoryStore


def serve_stdio(store: MemoryStore) -> None:
    """Serve standard input and output until they end."""
    # Nothing else stops a thread that reads standard input, and a kill loses nothing (M-40).
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    anyio.run(mcp_server.serve_stdio, store)


def serve_http(
    open_store: Callable[[], MemoryStore], principals: Path, host: str, port: int
) -> None:
    """Serve HTTP until Ctrl-C, and print the address. The store is opened last.

    Raises MemoryStoreError if the file of principals is invalid, and McppError if the address
    cannot be used.
    """
    with importing("memory"):
        import uvicorn

    credentials = Credentials.read(principals)
    with listen(host, port) as listener, open_store() as store:
        app = mcp_server.http_app(store, credentials, host=listener.getsockname()[0])
        sys.stderr.write(f"mcpp memory: http://{address_of(listener)}/mcp\n")
        with suppress(KeyboardInterrupt):  # raised after uvicorn has shut down
            config = uvicorn.Config(app, log_level="warning", ws="none")
            uvicorn.Server(config).run(sockets=[listener])
