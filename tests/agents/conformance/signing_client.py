"""A client for the conformance suite: a bridge that signs in, and a participant that calls it.

The person with the browser is played by a request that follows the redirections.
"""

import os
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import httpx2

from mcpp.client.tasks import background
from mcpp.testing import MemoryPod
from mcpp_agents.bridge.agent import bridge
from mcpp_agents.bridge.oauth import oauth
from mcpp_agents.bridge.openers import over_http
from mcpp_agents.bridge.upstream import Upstream


def open_in_browser(url: str) -> None:
    threading.Thread(target=httpx2.get, args=(url,), kwargs={"follow_redirects": True}).start()


async def main(url: str, folder: Path) -> None:
    auth = oauth(url, open_in_browser, folder)
    upstream = Upstream(over_http(url, auth=auth), name="server")
    pod = MemoryPod()
    async with background() as tasks:
        with anyio.fail_after(20):
            await tasks.start(upstream.keep_running)
            async with pod.run(bridge("server", upstream)), pod.connect("caller") as caller:
                tools = (await caller.request("server", "tools/list"))["tools"]
                for tool in tools[:1]:
                    await caller.call("server", tool["name"])


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        anyio.run(main, sys.argv[-1], Path(os.environ.get("MCPP_TEST_TOKENS", folder)))
