"""Harness of the inspector tests: a gateway process, its clients and an interruptible proxy."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from copy import copy
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

import mcpp
from mcpp.protocol.envelope import Context
from tests.gateway.ports import free_port

BOUND = 20.0  # seconds that any step may take
MCPP = str(Path(sys.executable).parent / "mcpp")
PARTICIPANTS = {
    "ada": "*",
    "analyst": "*",
    "crm": "*",
    "files": "*",
    "guest": "chat",
    "critic": "mcp/reject",
}  # with the kinds that they may send


def chromium() -> str | None:
    """Return the path of Chromium, if it is installed."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


# Disables everything that would use the network: the tests run without one.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--font-render-hinting=none",
]


class InspectorHarness:
    """A gateway process that can be restarted on the same port, and the clients of one pod.

    The gateway may serve many pods: `for_pod` returns a harness for one of them.
    """

    def __init__(
        self,
        folder: Path,
        *,
        pods: int = 1,
        origins: tuple[str, ...] = (),
        log: Path | None = None,
        people: tuple[str, ...] = (),
        more: str = "",
        **limits: float,
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.pod = "demo"
        names = [self.pod, *(f"demo{number}" for number in range(1, pods))]
        self._path = folder / "pod.toml"
        config = _config(self.port, names, origins, limits, people)
        if log is not None:
            config += f"\n[log]\nkind = 'file'\npath = {json.dumps(str(log))}\n"
        self._path.write_text(f"{config}\n{more}")
        self._process: subprocess.Popen[str] | None = None
        self._clients = ExitStack()

    def for_pod(self, number: int) -> "InspectorHarness":
        """Return a harness for one pod of this gateway, which does not own the process."""
        harness = copy(self)
        harness.pod = f"demo{number}"
        harness._process = None
        harness._clients = ExitStack()
        return harness

    def start(self) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("MCPP_")}
        self._process = subprocess.Popen(
            [MCPP, "gateway", "--config", str(self._path)],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "listening" in line:
                break
        # Keep reading, or a full pipe would block the gateway.
        self._reader = threading.Thread(target=self._process.stderr.read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Disconnect all clients, and stop the gateway if this harness started it."""
        self._clients.close()
        if self._process is not None:
            self._process.terminate()
            self._process.wait(BOUND)
            self._reader.join(BOUND)
            assert self._process.stderr is not None
            self._process.stderr.close()
            self._process = None

    def revoke(self, participant: str) -> None:
        """Replace a participant's token in the configuration and reload it."""
        assert self._process is not None
        now = self._path.read_text()
        self._path.write_text(now.replace(self.token(participant), f"another-{'x' * 16}"))
        self._process.send_signal(signal.SIGHUP)

    def token(self, participant: str) -> str:
        return _token(self.pod, participant)

    def join(self, name: str) -> "InspectorClient":
        """Return a client that has joined as this participant."""
        connection = self._clients.enter_context(
            connect(
                f"ws://127.0.0.1:{self.port}/ws",
                additional_headers={"Authorization": f"Bearer {self.token(name)}"},
                max_size=None,
                close_timeout=1,
            )
        )
        return InspectorClient(name, connection)


def _token(pod: str, participant: str) -> str:
    return f"token-of-{participant}-in-{pod}-0123456789"


def _config(
    port: int,
    pods: list[str],
    origins: tuple[str, ...],
    limits: Mapping[str, float],
    people: tuple[str, ...],
) -> str:
    lines = ["[gateway]", f"port = {port}", f"allowed_origins = {json.dumps(origins)}"]
    lines += ["[limits]", *(f"{name} = {value}" for name, value in limits.items())]
    for pod in pods:
        for name, kinds in PARTICIPANTS.items():
            lines += [f"[pods.{pod}.participants.{name}]", f'token = "{_token(pod, name)}"']
            lines += [f'capabilities = [{{ kind = "{kinds}" }}]']
            lines += [f"multiple = {str(name == 'ada').lower()}"]
            lines += [f"person = {str(name in people).lower()}"]
    return "\n".join(lines)


class InspectorClient:
    """A participant whose `send` returns when the envelope has been echoed."""

    def __init__(self, name: str, connection: ClientConnection) -> None:
        self.name = name
        self._connection = connection
        self._connection.recv(BOUND)

    def send(
        self,
        kind: str,
        payload: Any,
        *,
        context: Context | str | None = None,
        to: str | None = None,
        about: str | None = None,
        attachments: Sequence[mcpp.Attachment] = (),
        wait: bool = True,
    ) -> str:
        """Send an envelope and return its id."""
        envelope = mcpp.new_envelope(
            kind,
            payload,
            sender=self.name,
            context=Context(id=context) if isinstance(context, str) else context,
            to=[to] if to else None,
            correlation_id=about,
            attachments=attachments,
        )
        self._connection.send(mcpp.encode(envelope).decode())
        if wait:
            self.receive(envelope.id)
        return envelope.id

    def receive(self, id: str) -> Any:
        """Return the next envelope with this id or correlation id."""
        while True:
            envelope = json.loads(self._connection.recv(BOUND))
            if id in (envelope["id"], envelope.get("correlation_id")):
                return envelope

    def receive_kind(self, prefix: str) -> Any:
        """Return the next envelope whose kind has this prefix."""
        while True:
            envelope = json.loads(self._connection.recv(BOUND))
            if envelope["kind"].startswith(prefix):
                return envelope

    def leave(self) -> None:
        self._connection.close()

    def chat(self, text: str, **more: Any) -> str:
        return self.send("chat", {"text": text}, **more)

    def think(self, thought: str, context: Context | str) -> str:
        return self.send("reflection", {"thought": thought}, context=context)

    def conclude(self, decision: str, context: Context | str) -> str:
        return self.send("conclusion", {"decision": decision}, context=context)

    def propose(self, tool: str, arguments: Mapping[str, Any], to: str, **more: Any) -> str:
        payload = {"method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        return self.send(f"mcp/proposal:tools/call:{tool}", payload, to=to, **more)

    def ask(self, tool: str, arguments: Mapping[str, Any], to: str, **more: Any) -> str:
        params = {"name": tool, "arguments": arguments}
        payload = {"jsonrpc": "2.0", "id": "1", "method": "tools/call", "params": params}
        return self.send(f"mcp/request:tools/call:{tool}", payload, to=to, **more)

    def answer(self, request: str, tool: str, result: Mapping[str, Any], **more: Any) -> str:
        payload = {"jsonrpc": "2.0", "id": request, "result": result}
        return self.send(f"mcp/response:tools/call:{tool}", payload, about=request, **more)


class BreakableProxy:
    """A TCP proxy before the gateway whose connections can be closed or frozen."""

    def __init__(self, target: int, port: int) -> None:
        self._target = target
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting = True
        self._frozen = False
        self._server = socket.create_server(("127.0.0.1", port))
        self._run(self._accept)

    def disconnect(self) -> None:
        """Close all connections and accept no new ones."""
        self._accepting = False
        for side in self._sockets:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def freeze(self) -> None:
        """Discard all data silently."""
        self._frozen = True

    def restore(self) -> None:
        self._accepting = True
        self._frozen = False

    def close(self) -> None:
        self.disconnect()
        self._server.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(BOUND)
        for one in (self._server, *self._sockets):
            one.close()

    def _run(self, work: Callable[..., None], *arguments: socket.socket) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self._sockets.append(near)
                if not self._accepting:
                    near.shutdown(socket.SHUT_RDWR)
                    continue
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets.append(far)
                self._run(self._pump, near, far)
                self._run(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self._frozen:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def breakable_proxy(target: int, port: int) -> Iterator[BreakableProxy]:
    """Run a proxy."""
    proxy = BreakableProxy(target, port)
    try:
        yield proxy
    finally:
        proxy.close()


@contextmanager
def inspector_harness(folder: Path, **options: Any) -> Iterator[InspectorHarness]:
    """Run a harness."""
    harness = InspectorHarness(folder, **options)
    harness.start()
    try:
        yield harness
    finally:
        harness.stop()


@contextmanager
def replayed(recording: Path, *options: str) -> Iterator[str]:
    """Run `mcpp replay` on a pod's log and yield the link that it prints."""
    program = "import sys; from mcpp_gateway.replay.commands import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", program, str(recording), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            last = "It begins when the first participant joins. Stop with Ctrl-C.\n"
            output = "".join(iter(process.stdout.readline, last))
            found = re.search(r"http://localhost:(\d+)/#([\w-]{22})", output)
            assert found is not None, output
            yield f"http://127.0.0.1:{found[1]}/#{found[2]}"
        finally:
            process.terminate()


@contextmanager
def up(folder: Path) -> Iterator[str]:
    """Run `mcpp up` in a folder and yield the link that it prints."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MCPP_")}
    command = [MCPP, "up", "--port", str(free_port())]
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            output = "".join(iter(process.stdout.readline, "Stop with Ctrl-C.\n"))
            found = re.search(r"inspector  (https?://127\.0\.0\.1:\d+/#[\w-]{22})\s", output)
            assert found is not None, output
            yield found[1]
        finally:
            process.terminate()
