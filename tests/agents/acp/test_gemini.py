"""Another real coding agent, Gemini CLI, on a fake model behind Gemini's API, without a network."""

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anyio
import pytest

import mcpp
from mcpp.testing import MemoryPod
from tests.agents.acp.bridges import Folders, coding_agent, said

TEXT = "print('hello')\n"
INSTALLED = Path(__file__).parents[3] / ".coding-agents" / "node_modules" / ".bin" / "gemini"


def program() -> Path | None:
    on_path = [Path(each) / "gemini" for each in os.environ.get("PATH", "").split(":") if each]
    return next((path for path in (INSTALLED, *on_path) if os.access(path, os.X_OK)), None)


PROGRAM = program()

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="Gemini CLI is not installed: make setup-agents"),
]


class FakeGemini(BaseHTTPRequestHandler):
    """Answers `streamGenerateContent`: writes `hello.py`, then says that it is done."""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        parts = [part for each in request["contents"] for part in each["parts"]]
        # What happened since the last question.
        asked = [n for n, part in enumerate(parts) if "writes:" in part.get("text", "")]
        done = any("functionResponse" in part for part in parts[asked[-1] if asked else 0 :])
        said: list[dict[str, Any]] = [{"text": "It is written." if done else "I begin."}]
        if request.get("tools") and not done:
            arguments = {"file_path": "hello.py", "content": TEXT}
            said.append({"functionCall": {"name": "write_file", "args": arguments}})
        content = {"role": "model", "parts": said}
        usage = {"promptTokenCount": 5, "candidatesTokenCount": 3, "totalTokenCount": 8}
        candidates = [{"content": content, "index": 0, "finishReason": "STOP"}]
        answer = json.dumps({"candidates": candidates, "usageMetadata": usage})
        streams = "stream" in self.path
        data = (f"data: {answer}\n\n" if streams else answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if streams else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def environment(folders: Folders) -> Iterator[dict[str, str]]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeGemini)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    settings = {
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    (folders.state / ".gemini").mkdir()
    (folders.state / ".gemini" / "settings.json").write_text(json.dumps(settings))
    yield {
        "PATH": os.environ["PATH"],  # for Node
        "HOME": str(folders.state),
        "GEMINI_API_KEY": "none",
        "GEMINI_MODEL": "gemini-2.5-flash",
        "GOOGLE_GEMINI_BASE_URL": f"http://127.0.0.1:{server.server_address[1]}",
    }
    server.shutdown()
    server.server_close()


async def test_gemini_cli_asks_writes_and_goes_on_with_its_session(
    pod: MemoryPod, folders: Folders, environment: dict[str, str]
) -> None:
    file = folders.work / "hello.py"
    agent: Any = {
        "command": [str(PROGRAM), "--acp"],
        "environment": environment,
        "offers_files": False,
    }
    async with pod.connect("alice") as alice:
        async with coding_agent(pod, folders, **agent):
            await alice.send("chat", "Please write hello.py.", to="coder")
            proposal = await said(alice, "mcp/proposal")
            # Gemini CLI lists its option *always* first.
            assert proposal.payload["params"]["arguments"]["option"] == "once"
            assert proposal.payload["reason"] == "coder asks: Writing to hello.py"
            assert not await anyio.Path(file).exists()
            await alice.approve(proposal)
            assert (await said(alice, "chat")).text == "It is written."
            assert file.read_text() == TEXT
        file.unlink()
        async with coding_agent(pod, folders, **agent):
            question = await alice.send("chat", "Once more, please.", to="coder")
            await alice.reject(await said(alice, "mcp/proposal"), "no", "not now")
            reply = await said(alice, "chat")
            assert not await anyio.Path(file).exists()
            assert reply.correlation_id == question.id
            # It has loaded its session; what it repeats of the past is not said again.
            thoughts = await alice.history(mcpp.filters.kind("reflection")).all()
            texts = [each.text for each in thoughts]
    assert [text for text in texts if text.startswith("Done")] == [
        "Done: Writing to hello.py\nhello.py:\n+ print('hello')"
    ]
    assert texts.count("I begin.") == 2
