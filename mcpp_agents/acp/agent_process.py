"""A coding agent's process, kept running: started, initialized, and started again when it ends."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
from acp import PROTOCOL_VERSION, RequestError
from acp.client import ClientSideConnection
from acp.schema import AgentCapabilities, ClientCapabilities, FileSystemCapabilities, Implementation
from anyio.abc import TaskStatus
from pydantic import ValidationError

from mcpp import McppError, Options, __version__
from mcpp_agents.acp.limits import AcpLimits
from mcpp_agents.acp.transport import AgentTransport, OnUpdate
from mcpp_agents.bridge.server_process import server_process

# An agent that ran this long was healthy: the backoff starts anew when it ends.
_HEALTHY_SECONDS: Final = 30.0

# What an agent's answers can raise: errors of its own, its end, and results of another shape.
ANSWER_ERRORS: Final = (RequestError, ConnectionError, ValidationError)

logger = logging.getLogger("mcpp.acp")


class AgentError(McppError):
    """The agent cannot answer: it is not running, has failed, or has not answered in time."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start an agent: its command, its environment and its working folder."""

    command: Sequence[str]
    environment: Mapping[str, str]
    folder: Path
    offers_files: bool = True
    offers_terminals: bool = False


@dataclass(eq=False, slots=True)
class RunningAgent:
    """One process of the agent, from its start to its end. Owns its open sessions."""

    connection: ClientSideConnection
    transport: AgentTransport
    capabilities: AgentCapabilities
    sessions: dict[str, str] = field(default_factory=dict)  # by context, the last used one last

    @property
    def can_load(self) -> bool:
        """Whether it can go on with a session of an earlier process."""
        return bool(self.capabilities.load_session)

    @property
    def can_close(self) -> bool:
        """Whether it can be told that a session is no longer needed."""
        offered = self.capabilities.session_capabilities
        return offered is not None and offered.close is not None

    async def until_quiet(self, seconds: float) -> None:
        """Wait until it sends no updates for so long; not longer than ten times that."""
        quiet_at = anyio.current_time() + seconds
        with anyio.move_on_after(10 * seconds):
            while (now := anyio.current_time()) < quiet_at:
                await anyio.sleep(quiet_at - now)
                quiet_at = max(quiet_at, self.transport.updated_at + seconds)


class CodingAgent:
    """An agent that is kept running. Owns the process that runs now.

    Args:
        launch: how to start it.
        client: serves its requests, as `acp.Client` describes.
        on_update: is called with the params of each update, one after another.
        limits: how long it may take.
        backoff: seconds to wait before a start, by the number of failures.
    """

    def __init__(
        self,
        launch: Launch,
        client: Any,
        on_update: OnUpdate,
        limits: AcpLimits,
        backoff: Callable[[int], float] = Options().backoff,  # noqa: B008  (frozen)
    ) -> None:
        self._launch = launch
        self._client = client
        self._on_update = on_update
        self._limits = limits
        self._backoff = backoff
        self._running: RunningAgent | None = None
        self._ready = anyio.Event()
        self._problem = "it has not answered yet"

    async def running(self) -> RunningAgent:
        """Return the process that runs now; wait for one that is starting. Raises AgentError."""
        with anyio.move_on_after(self._limits.start_seconds):
            await self._ready.wait()
        if self._running is None:
            raise AgentError(f"the coding agent is not running: {self._problem}")
        return self._running

    async def keep_running(
        self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Keep the agent running until cancelled; call `started` when its program was started.

        Raises AgentError for a program that cannot be run at all.
        """
        attempt, is_known = 0, False
        while True:
            started_at = anyio.current_time()
            try:
                async with server_process(
                    self._launch.command, self._launch.environment, self._launch.folder
                ) as process:
                    if not is_known:
                        is_known = True
                        task_status.started()
                    transport = AgentTransport(
                        process,
                        self._on_update,
                        max_requests=self._limits.requests,
                        write_seconds=self._limits.write_seconds,
                    )
                    await self._use(transport)
                    self._problem = "it has ended"
            except ANSWER_ERRORS as error:
                self._problem = str(error)
            except OSError as error:
                if not is_known:
                    command = self._launch.command[0]
                    raise AgentError(f"{command} cannot be run: {error.strerror}") from None
                self._problem = str(error)
            logger.warning("the coding agent: %s; starting it again", self._problem)
            healthy = anyio.current_time() - started_at > _HEALTHY_SECONDS
            attempt = 0 if healthy else attempt + 1
            await anyio.sleep(self._backoff(attempt))

    async def _use(self, transport: AgentTransport) -> None:
        """Initialize the agent and wait for its end. Raises ANSWER_ERRORS."""
        connection = ClientSideConnection(self._client, transport)
        try:
            with anyio.move_on_after(self._limits.start_seconds) as starting:
                answer = await connection.initialize(
                    protocol_version=PROTOCOL_VERSION,
                    client_capabilities=self._capabilities(),
                    client_info=Implementation(name="mcpp", version=__version__),
                )
            if starting.cancelled_caught:
                raise ConnectionError(f"it did not answer in {self._limits.start_seconds:g} s")
            if answer.protocol_version != PROTOCOL_VERSION:
                raise ConnectionError(f"it speaks version {answer.protocol_version} of ACP, not 1")
            offered = answer.agent_capabilities or AgentCapabilities()
            self._running = RunningAgent(connection, transport, offered)
            self._ready.set()
            await transport.ended.wait()
        finally:
            self._running, self._ready = None, anyio.Event()
            with anyio.CancelScope(shield=True), suppress(*ANSWER_ERRORS):
                await connection.close()

    def _capabilities(self) -> ClientCapabilities:
        files = self._launch.offers_files
        return ClientCapabilities(
            fs=FileSystemCapabilities(read_text_file=files, write_text_file=files),
            terminal=self._launch.offers_terminals,
        )
