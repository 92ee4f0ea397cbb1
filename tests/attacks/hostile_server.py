"""An MCP server that attacks its bridge. `sys.argv[1]` may name a file for its process ids."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any


def write(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
    sys.stdout.flush()


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


def call(id: Any, params: dict[str, Any]) -> dict[str, Any] | None:
    amount = int(params["arguments"].get("amount", 0))
    match params["name"]:
        case "progress":
            token = params["_meta"]["progressToken"]
            for number in range(amount):
                shown = "m" * int(params["arguments"].get("message", 1))
                progress = {"progressToken": token, "progress": number, "message": shown}
                write({"method": "notifications/progress", "params": progress})
        case "noise":
            for _ in range(amount // 100):
                os.write(2, b"x" * 99 + b"\n")
        case "babble":
            for _ in range(amount // 100):
                sys.stdout.write("y" * 99 + "\n")
        case "long":
            write({"id": id, "result": text("z" * amount)})
            return None
        case "long_id_last":
            write({"result": text("z" * amount), "id": id})
            return None
        case "deep":
            nested = "[" * amount + "]" * amount
            sys.stdout.write(f'{{"jsonrpc":"2.0","id":{id},"result":{{"x":{nested}}}}}\n')
            return None
    return text("done")


def answer(message: dict[str, Any]) -> None:
    method, id = message.get("method"), message.get("id")
    if id is None:
        return
    result: dict[str, Any] | None
    match method:
        case "initialize":
            result = {"protocolVersion": "2025-03-26", "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "hostile", "version": "1"}
        case "tools/call":
            result = call(id, message["params"])
        case _:
            write({"id": id, "error": {"code": -32601, "message": f"no {method}"}})
            return
    if result is not None:
        write({"id": id, "result": result})


if __name__ == "__main__":
    if len(sys.argv) > 1:
        # Ignores the end of its input and polite signals, and so does its child.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"
        child = subprocess.Popen([sys.executable, "-c", stubborn])
        Path(sys.argv[1]).write_text(f"{os.getpid()} {child.pid}")
    for line in sys.stdin:
        answer(json.loads(line))
        sys.stdout.flush()
    if len(sys.argv) > 1:
        signal.pause()
