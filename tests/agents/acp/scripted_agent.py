"""A coding agent for tests. The prompt says what it does.

Each line of the question is a step, such as `say hello` or `write /notes.md: text`. Sessions are
kept in a file, so that another process can load them. It writes the protocol by itself: the package
`acp` takes a second to load, and lets no agent misbehave.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

KEPT = Path(os.environ.get("KEPT", "/nonexistent/file"))
OPTIONS = [  # in the order of Claude Code and Gemini CLI
    {"optionId": "o2", "name": "Always", "kind": "allow_always"},
    {"optionId": "o1", "name": "Yes", "kind": "allow_once"},
    {"optionId": "o3", "name": "No", "kind": "reject_once"},
]


class ScriptedAgent:
    """Runs the steps of its prompts."""

    def __init__(self) -> None:
        self.sessions: dict[str, list[str]] = {}
        self.cancelled: dict[str, asyncio.Event] = {}
        self.mode: dict[str, str] = {}
        self.has_loaded = asyncio.Event()
        self.has_loaded.set()
        self.servers: list[Any] = []
        self.cwd = ""
        self.title = ""
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.tasks: set[asyncio.Task[None]] = set()

    # --- the protocol ---

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=2**24)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            message = json.loads(line)
            if "method" not in message:
                if message["id"] in self.waiting:
                    self.waiting.pop(message["id"]).set_result(message)
                continue
            task = asyncio.create_task(self.answer(message))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def answer(self, message: dict[str, Any]) -> None:
        handle = getattr(self, "on_" + message["method"].replace("/", "_"))
        try:
            outcome = {"result": await handle(**message.get("params", {}))}
        except LookupError as error:
            outcome = {"error": {"code": -32002, "message": str(error)}}
        if "id" in message:
            send({"jsonrpc": "2.0", "id": message["id"], **outcome})

    async def request(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a request to the client, or its error as `refused`."""
        id = len(self.waiting) + 1000
        self.waiting[id] = asyncio.get_running_loop().create_future()
        send({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        answer = await self.waiting[id]
        if "error" in answer:
            return {"refused": answer["error"]["message"], "code": answer["error"]["code"]}
        return answer["result"] or {}

    async def on_initialize(self, **_: Any) -> dict[str, Any]:
        loads = {"loadSession": KEPT.parent.is_dir()}
        return {"protocolVersion": 1, "agentCapabilities": loads}

    async def on_session_new(self, cwd: str, mcpServers: list[Any], **_: Any) -> Any:  # noqa: N803
        id = f"s{os.getpid()}-{len(self.sessions)}"
        self.sessions[id] = []
        self.servers, self.cwd = mcpServers, cwd
        return {"sessionId": id, "modes": self.modes(id)}

    async def on_session_load(self, sessionId: str, cwd: str, **_: Any) -> Any:  # noqa: N803
        self.sessions[sessionId] = read_sessions()[sessionId]
        self.cwd = cwd
        self.has_loaded.clear()
        past = {"type": "text", "text": " | ".join(self.sessions[sessionId])}
        update(sessionId, "agent_message_chunk", content=past)
        asyncio.get_running_loop().call_later(0.05, self.send_past, sessionId)
        return {"modes": self.modes(sessionId)}

    def send_past(self, session: str) -> None:
        """Send more of the past, which Gemini CLI does after its answer."""
        update(session, "tool_call", toolCallId="past", title="past", status="completed")
        self.has_loaded.set()

    async def on_session_set_mode(self, sessionId: str, modeId: str) -> Any:  # noqa: N803
        self.mode[sessionId] = modeId
        return {}

    def modes(self, session: str) -> dict[str, Any]:
        modes = [{"id": each, "name": each} for each in ("code", "plan")]
        return {"currentModeId": self.mode.setdefault(session, "code"), "availableModes": modes}

    async def on_session_cancel(self, sessionId: str, **_: Any) -> None:  # noqa: N803
        if sessionId in self.cancelled:
            self.cancelled[sessionId].set()

    async def on_session_prompt(self, sessionId: str, prompt: list[Any], **_: Any) -> Any:  # noqa: N803
        await self.has_loaded.wait()
        text = prompt[-1]["text"].partition("\n\n")[2]
        self.sessions[sessionId].append(text)
        write_sessions(self.sessions)
        self.cancelled[sessionId] = asyncio.Event()
        reason = "end_turn"
        for line in text.splitlines():
            name, _, rest = line.partition(" ")
            if hasattr(self, f"do_{name}"):
                reason = await getattr(self, f"do_{name}")(sessionId, rest) or reason
        usage = {"inputTokens": 7, "outputTokens": 3, "totalTokens": 10}
        return {"stopReason": reason, "usage": usage}

    # --- the steps ---

    async def do_say(self, session: str, text: str) -> None:
        update(session, "agent_message_chunk", content={"type": "text", "text": text})

    async def do_call(self, session: str, rest: str) -> None:
        """`call NAME: TEXT`: mention a participant, which is to answer."""
        name, _, text = rest.partition(": ")
        await self.do_say(session, f"@{name}\n{text}")

    async def do_think(self, session: str, text: str) -> None:
        update(session, "agent_thought_chunk", content={"type": "text", "text": text})

    async def do_plan(self, session: str, text: str) -> None:
        rest = {"priority": "high", "status": "pending"}
        update(session, "plan", entries=[{"content": each, **rest} for each in text.split(", ")])

    async def do_remember(self, session: str, _: str) -> None:
        await self.do_say(session, " | ".join(self.sessions[session][:-1]) or "nothing")

    async def do_servers(self, session: str, _: str) -> None:
        given = [{"name": each["name"], "env": each["env"]} for each in self.servers]
        await self.do_say(session, json.dumps(given))

    async def do_pid(self, session: str, _: str) -> None:
        await self.do_say(session, str(os.getpid()))

    async def do_mode(self, session: str, _: str) -> None:
        await self.do_say(session, self.mode[session])

    async def do_env(self, session: str, name: str) -> None:
        await self.do_say(session, os.environ.get(name, "not set"))

    async def do_title(self, session: str, text: str) -> None:
        """`title TEXT`: the title of the next call that asks for permission, in place of a path."""
        self.title = text

    async def do_ask(self, session: str, rest: str) -> None:
        """`ask PATH: TEXT`: ask for permission to write a file, then write it by itself."""
        path, _, text = rest.partition(": ")
        place = Path(self.cwd) / path
        old = place.read_text() if place.exists() else None
        change = {"type": "diff", "path": str(place), "oldText": old, "newText": text}
        title, self.title = self.title or path, ""
        call = {"toolCallId": f"write-{path}", "title": title, "kind": "edit", "content": [change]}
        update(session, "tool_call", status="pending", **call)
        answer = await self.request(
            "session/request_permission", sessionId=session, toolCall=call, options=OPTIONS
        )
        chosen = answer["outcome"].get("optionId", "cancelled")
        if chosen in ("o1", "o2"):
            place.write_text(text)
        done = "completed" if chosen in ("o1", "o2") else "failed"
        update(session, "tool_call_update", toolCallId=call["toolCallId"], status=done)
        await self.do_say(session, f"chose {chosen}")

    async def do_many(self, session: str, count: str) -> None:
        """`many COUNT`: requests for permission at once."""
        call = {"toolCallId": "x", "title": "x", "kind": "execute"}
        asking: list[Awaitable[dict[str, Any]]] = [
            self.request(
                "session/request_permission", sessionId=session, toolCall=call, options=OPTIONS
            )
            for _ in range(int(count))
        ]
        answers = await asyncio.gather(*asking)
        await self.do_say(session, json.dumps(answers))

    async def do_run(self, session: str, command: str) -> None:
        """`run COMMAND`: run a program in a terminal."""
        made = await self.request("terminal/create", sessionId=session, command=command)
        text = f"refused: {made.get('refused')}"
        if "terminalId" in made:
            named = {"sessionId": session, "terminalId": made["terminalId"]}
            done = await self.request("terminal/wait_for_exit", **named)
            output = await self.request("terminal/output", **named)
            await self.request("terminal/release", **named)
            text = f"{done.get('exitCode', done.get('signal'))} {output['output']}"
        content = [{"type": "content", "content": {"type": "text", "text": text}}]
        call = {"toolCallId": "run", "title": command, "kind": "execute", "content": content}
        update(session, "tool_call", status="completed", **call)
        await self.do_say(session, text)

    async def do_start(self, session: str, command: str) -> None:
        """`start COMMAND`: run a program in a terminal, and do not wait for it."""
        await self.request("terminal/create", sessionId=session, command=command)

    async def do_read(self, session: str, path: str) -> None:
        answer = await self.request("fs/read_text_file", sessionId=session, path=path)
        refused = f"refused: {answer.get('refused')} {answer.get('code')}"
        await self.do_say(session, answer.get("content", refused))

    async def do_half(self, session: str, path: str) -> None:
        """`half PATH`: send half of an emoji, as programs do that cut a text within it."""
        await self.do_say(session, "cut \ud83d: ")
        answer = await self.request("fs/read_text_file", sessionId=session, path=f"{path}\ud83d")
        await self.do_say(session, answer["refused"])

    async def do_huge(self, session: str, path: str) -> None:
        """`huge PATH`: write a file by a line that is too long."""
        answer = await self.request(
            "fs/write_text_file", sessionId=session, path=path, content="x" * 9_000_000
        )
        await self.do_say(session, answer["refused"])

    async def do_write(self, session: str, rest: str) -> None:
        path, _, text = rest.partition(": ")
        answer = await self.request(
            "fs/write_text_file", sessionId=session, path=path, content=text
        )
        await self.do_say(session, f"refused: {answer['refused']}" if answer else "written")

    async def do_wait(self, session: str, _: str) -> str:
        await self.cancelled[session].wait()
        return "cancelled"

    async def do_hang(self, session: str, _: str) -> None:
        await asyncio.Event().wait()

    async def do_die(self, session: str, _: str) -> None:
        os._exit(3)

    async def do_flood(self, session: str, count: str) -> None:
        """`flood COUNT`: many tool calls, and a long text."""
        for number in range(int(count)):
            update(session, "tool_call", toolCallId=str(number), title="x", status="completed")
        for _ in range(300):
            await self.do_say(session, "x" * 10_000)

    async def do_strange(self, session: str, _: str) -> None:
        """Messages that no agent should send."""
        await self.do_say("other", "of a session that does not exist")
        asked = await self.request(
            "session/request_permission",
            sessionId="other",
            toolCall={"toolCallId": "x"},
            options=OPTIONS,
        )
        for message in STRANGE:
            send(message)
        sys.stdout.write("[" * 100_000 + "\n" + "no JSON\n" + "x" * 9_000_000 + "\n")
        await self.do_say(session, asked["outcome"]["outcome"])

    async def do_stop(self, session: str, reason: str) -> str:
        return reason


def read_sessions() -> Any:
    return json.loads(KEPT.read_text()) if KEPT.exists() else {}


def write_sessions(sessions: dict[str, list[str]]) -> None:
    if KEPT.parent.is_dir():
        KEPT.write_text(json.dumps(sessions))


STRANGE: list[Any] = [
    [],
    {"id": [], "result": {}},
    {"id": 0, "error": "text"},
    {"id": True, "method": "x"},
    {"id": 5, "method": 7},
    {"id": 6, "method": "unknown/method", "params": "x"},
    {"method": "unknown/notification"},
    {"method": "session/update"},
    {"method": "session/update", "params": {"sessionId": 1, "update": {}}},
    {"id": 7, "method": "fs/read_text_file", "params": {"_meta": {"path": 1}}},
]


def update(session: str, name: str, **members: Any) -> None:
    params = {"sessionId": session, "update": {"sessionUpdate": name, **members}}
    send({"jsonrpc": "2.0", "method": "session/update", "params": params})


def send(message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(ScriptedAgent().serve())
