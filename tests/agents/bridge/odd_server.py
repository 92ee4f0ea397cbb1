"""An MCP server of an older revision, written without an SDK, with tools that misbehave."""

import json
import os
import sys
from typing import Any

TOOLS = [
    "show_meta",
    "wait",
    "was_cancelled",
    "grow",
    "die",
    "babble",
    "ask",
    "list",
    "batch",
    "refuse",
    "no_utf8",
    "half_emoji",
    "deep",
    "nan",
    "chatter",
    "huge",
]
waiting: set[Any] = set()
cancelled: list[Any] = []


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def text(value: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": json.dumps(value)}]}


def call(id: Any, params: dict[str, Any]) -> dict[str, Any] | None:
    match params["name"]:
        case "show_meta":
            mark = {"context": {"lifecycle": "transient", "summary": "all of it"}}
            return text(params.get("_meta")) | {"_meta": mark, "x-unknown": [1, None]}
        case "wait":
            waiting.add(id)
            token = params["_meta"]["progressToken"]
            progress = {"progressToken": token, "progress": 1}
            write({"method": "notifications/progress", "params": progress})
            return None
        case "was_cancelled":
            return text(bool(cancelled))
        case "grow":
            TOOLS.append("grown")
            write({"method": "notifications/tools/list_changed"})
            return text("grown")
        case "babble":
            sys.stdout.write("this is not JSON-RPC\n")
            return text("recovered")
        case "ask":
            # A request to the client, whose id names the call that waits for the answer.
            request = {"messages": [], "maxTokens": 1}
            write({"id": f"ask {id}", "method": "sampling/createMessage", "params": request})
            return None
        case "list":
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": id, "result": ["no", "object"]}))
            sys.stdout.write("\n")
            return None
        case "batch":
            answer = {"jsonrpc": "2.0", "id": id, "result": text(1)}
            sys.stdout.write(json.dumps([{"jsonrpc": "2.0", "method": "x"}, 7, answer]) + "\n")
            return None
        case "refuse":
            write({"id": id, "error": {"code": -32000, "message": "not today"}})
            return None
        case "no_utf8":
            line = json.dumps({"jsonrpc": "2.0", "id": id, "result": text("caf?")}).encode()
            sys.stdout.buffer.write(line.replace(b"?", b"\xe9") + b"\n")
            return None
        case "half_emoji":
            return {"content": [{"type": "text", "text": "well done \ud83d"}]}
        case "deep":
            nested: list[Any] = []
            for _ in range(200):
                nested = [nested]
            return text("deep") | {"structuredContent": {"nested": nested}}
        case "nan":
            return text("nan") | {"structuredContent": {"value": float("nan")}}
        case "chatter":
            for _ in range(2000):
                write({"method": "notifications/tools/list_changed"})
            return text("at last")
        case "huge":
            return text("x" * 40_000_000)
        case "die":
            os._exit(3)
    raise KeyError(params["name"])


def answer(message: dict[str, Any]) -> None:
    method, id, params = message.get("method"), message.get("id"), message.get("params", {})
    if method == "notifications/cancelled":
        cancelled.append(params["requestId"])
        return
    if isinstance(id, str) and id.startswith("ask "):
        write({"id": int(id.removeprefix("ask ")), "result": text(message.get("error"))})
        return
    if id is None:
        return
    result: dict[str, Any] | None
    match method:
        case "initialize":
            version = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}}
            result = version | {"serverInfo": {"name": "odd", "version": "1"}}
        case "tools/list":
            schema = {"type": "object"}
            result = {"tools": [{"name": name, "inputSchema": schema} for name in TOOLS]}
        case "tools/call":
            result = call(id, params)
        case _:
            write({"id": id, "error": {"code": -32601, "message": f"no {method}", "data": [7]}})
            return
    if result is not None:
        write({"id": id, "result": result})


if __name__ == "__main__":
    for line in sys.stdin:
        answer(json.loads(line))
        sys.stdout.flush()
