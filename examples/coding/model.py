"""A fake model for two coding agents: a script behind OpenAI's API for chats, on this machine.

It needs no key and no network. What it answers depends only on the conversation that it is sent,
so any number of agents can use it at once. `python model.py 8199` serves it by itself.
"""

import json
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FILE = "greet.py"
FIRST = '''def greet(name: str) -> str:
    """Return a greeting."""
    return f"Hello, {name}!"
'''
BODY = '    return f"Hello, {name}!"\n'
MENDED = f"""    if not name.strip():
        raise ValueError("a greeting needs a name")
{BODY}"""


Reply = tuple[str, str, dict[str, Any] | None]  # a text, and a tool with its arguments


def reply(messages: list[dict[str, Any]]) -> Reply:
    """Return the model's reply to a conversation."""
    texts = [text_of(each) for each in messages]
    last = max(place for place, each in enumerate(messages) if each["role"] == "user")
    # What the tools returned since the last question.
    done = [
        text
        for each, text in list(zip(messages, texts, strict=True))[last:]
        if each["role"] == "tool"
    ]
    if any("You are @reviewer" in text for text in texts):
        return review(done)
    return write(texts[last], done)


def write(asked: str, done: list[str]) -> Reply:
    """Return what the writer's model says."""
    if "empty name" in asked and not done:
        edit = {"filePath": FILE, "oldString": BODY, "newString": MENDED}
        return "An empty name makes no greeting. I mend that.", "edit", edit
    if "empty name" in asked:
        return f"I mended {FILE}: an empty name is refused. @reviewer, please look again.", "", None
    if not done:
        return f"I begin with {FILE}.", "write", {"filePath": FILE, "content": FIRST}
    return f"I wrote {FILE}. @reviewer, please look at it.", "", None


def review(done: list[str]) -> Reply:
    """Return what the reviewer's model says."""
    if not done:
        return f"I read {FILE}.", "read", {"filePath": FILE}
    if len(done) > 1:
        return "One problem: greet('') greets nobody. I have asked for a change.", "", None
    if "needs a name" in done[0]:
        return "This is right now. Decided: greet refuses an empty name.", "", None
    ask = {"to": ["writer"], "text": f"In {FILE}, an empty name should be refused. Please mend it."}
    return "An empty name is not handled.", "pod_pod_send", ask


def text_of(message: dict[str, Any]) -> str:
    """Return the text of a message, which is a string or in parts."""
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(str(part.get("text", "")) for part in content or ())


def events(request: dict[str, Any]) -> Iterator[str]:
    """Yield the events of a streamed reply."""
    if not request.get("tools"):  # the agent wants a title for its session
        text, tool, arguments = "Greeting", "", None
    else:
        text, tool, arguments = reply(request["messages"])
    for word in text.split(" "):
        yield event({"content": f"{word} "})
    if arguments is not None:
        call = {"name": tool, "arguments": json.dumps(arguments)}
        id = f"call_{len(request['messages'])}"
        yield event({"tool_calls": [{"index": 0, "id": id, "type": "function", "function": call}]})
    yield event({}, "stop" if arguments is None else "tool_calls")
    yield "data: [DONE]\n\n"


def event(delta: dict[str, Any], reason: str | None = None) -> str:
    """Return an event with a part of the reply."""
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    usage = {"prompt_tokens": 90, "completion_tokens": 10, "total_tokens": 100}
    body = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    return f"data: {json.dumps(body | {'choices': [choice], 'usage': usage})}\n\n"


class Handler(BaseHTTPRequestHandler):
    """Answers `POST /v1/chat/completions`."""

    def do_POST(self) -> None:
        """Answer a request."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = "".join(events(request)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


@contextmanager
def serving(port: int = 0) -> Generator[str, None, None]:
    """Serve the model while the block runs; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    with serving(int(sys.argv[1])) as address:
        print(address, flush=True)
        threading.Event().wait()
