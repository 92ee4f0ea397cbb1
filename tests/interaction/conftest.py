"""Runs each interaction test against the gateway's core in memory and a gateway on a real socket.

anyio's plugin runs each test on asyncio and on trio. The gateway on the socket has its own thread
and event loop, so that it is the same for both.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

import mcpp
from mcpp.client.connection import Options
from mcpp.client.local_pod import ANYTHING, to_toml
from mcpp.testing import MemoryPod
from mcpp_gateway import config as gateway_config
from mcpp_gateway.edge.server import Gateway

T = TypeVar("T")

QUICK = Options(backoff=lambda attempt: 0.0)


class AnyPod(Protocol):
    """A pod that participants can be connected to by name."""

    def add(self, name: str, capabilities: Sequence[Mapping[str, Any]] = ANYTHING) -> None: ...
    @property
    def connect(self) -> Callable[..., AbstractAsyncContextManager[mcpp.Pod]]: ...
    def run(self, agent: mcpp.Participant) -> AbstractAsyncContextManager[mcpp.Pod]: ...
    def cut(self, name: str) -> None: ...
    def restart(self) -> None: ...


class SocketPod:
    """A gateway on a real socket, in a thread."""

    def __init__(
        self,
        limits: Mapping[str, Any] | None = None,
        *,
        tls: Path | None = None,
        log: Path | None = None,
    ) -> None:
        self._log = {} if log is None else {"log": {"kind": "file", "path": str(log)}}
        self._tls = {} if tls is None else {"tls_cert": str(tls), "tls_key": str(tls)}
        self.limits = dict(limits or {})
        self._participants: dict[str, Sequence[Mapping[str, Any]]] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._gateway = self._await(self._start(0))
        self.port = self._gateway.port

    @property
    def url(self) -> str:
        scheme = "wss" if self._tls else "ws"
        return f"{scheme}://127.0.0.1:{self.port}/ws?pod=test"

    def token(self, name: str) -> str:
        return f"token-of-{name}-0123456789"

    def add(self, name: str, capabilities: Sequence[Mapping[str, Any]] = ANYTHING) -> None:
        self._participants[name] = capabilities
        self._call(lambda: self._gateway.reconfigure(self._config(self.port)))

    def remove(self, name: str) -> None:
        del self._participants[name]
        self._call(lambda: self._gateway.reconfigure(self._config(self.port)))

    def connect(self, name: str, **options: Any) -> AbstractAsyncContextManager[mcpp.Pod]:
        if name not in self._participants:
            self.add(name)
        settings: dict[str, Any] = {
            "name": name,
            "token": self.token(name),
            "options": QUICK,
        } | options
        return mcpp.connect(self.url, **settings)

    def run(self, agent: mcpp.Participant) -> AbstractAsyncContextManager[mcpp.Pod]:
        options = agent.connect_options
        options["options"] = replace(options["options"], backoff=QUICK.backoff)
        return agent.run_in_background(self.connect(agent.name, **options))

    def cut(self, name: str) -> None:
        def abort() -> None:
            for connection in list(self._gateway.connections):
                peer = connection.peer
                if peer is not None and peer.session.member.settings.id == name:
                    connection.abort()

        self._call(abort)

    def restart(self) -> None:
        async def restart() -> Gateway:
            for connection in list(self._gateway.connections):
                connection.abort()
            await self._gateway.drain()
            return await self._start(self.port)

        self._gateway = self._await(restart())

    def drain(self) -> None:
        self._await(self._gateway.drain())

    def start(self) -> None:
        self._gateway = self._await(self._start(self.port))

    def close(self) -> None:
        self.drain()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self, port: int) -> Gateway:
        gateway = Gateway(self._config(port), asyncio.get_running_loop())
        await gateway.listen()
        return gateway

    def _config(self, port: int) -> gateway_config.Config:
        participants = {
            name: {"token": self.token(name), "capabilities": list(capabilities)}
            for name, capabilities in self._participants.items()
        }
        document = {
            "gateway": {"host": "127.0.0.1", "port": port} | self._tls,
            "limits": self.limits,
            "pods": {"test": {"participants": participants}},
        } | self._log
        text = "\n".join(f"{name} = {to_toml(value)}" for name, value in document.items())
        return gateway_config.parse(text, {})

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def _call(self, work: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def run() -> None:
            try:
                work()
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        done.result(10)


@pytest.fixture
def limits() -> dict[str, Any]:
    """The gateway's limits; a test parametrizes this fixture for others."""
    return {}


@pytest.fixture
def sockets(limits: dict[str, Any]) -> Iterator[SocketPod]:
    harness = SocketPod(limits)
    yield harness
    harness.close()


@pytest.fixture(params=["memory", "socket"])
def harness(request: pytest.FixtureRequest, limits: dict[str, Any]) -> Iterator[AnyPod]:
    if request.param == "memory":
        yield MemoryPod(limits=limits)
        return
    harness = SocketPod(limits)
    yield harness
    harness.close()
