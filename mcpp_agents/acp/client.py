"""The bridge as an agent's client: serves the agent's requests, and passes updates on.

Each request names a session; only sessions with a question are served.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import anyio.to_thread
from acp import RequestError
from acp.schema import (
    AllowedOutcome,
    CreateTerminalResponse,
    DeniedOutcome,
    EnvVariable,
    KillTerminalResponse,
    PermissionOption,
    ReadTextFileResponse,
    ReleaseTerminalResponse,
    RequestPermissionResponse,
    SessionNotification,
    TerminalExitStatus,
    TerminalOutputResponse,
    ToolCallUpdate,
    WaitForTerminalExitResponse,
    WriteTextFileResponse,
)
from pydantic import ValidationError

from mcpp import ConnectionLostError, McppError
from mcpp_agents.acp.descriptions import below
from mcpp_agents.acp.files import FileMissingError, WorkingFolder
from mcpp_agents.acp.permissions import Permissions
from mcpp_agents.acp.terminals import Terminals
from mcpp_agents.acp.turn import Turn

_REFUSED: Final = -32001
_NOT_FOUND: Final = -32002  # the protocol's own; agents create a file after it

logger = logging.getLogger("mcpp.acp")


class BridgeClient:
    """Serves an agent's requests. Owns the questions that are being answered, by session.

    `terminals` are None where the bridge does not offer them.
    """

    def __init__(
        self,
        permissions: Permissions,
        folder: WorkingFolder,
        terminals: Terminals | None,
        *,
        offers_files: bool,
    ) -> None:
        self.turns: dict[str, Turn] = {}
        self._permissions = permissions
        self._folder = folder
        self._offers_files = offers_files
        self._terminals = terminals

    @asynccontextmanager
    async def answering(self, session_id: str, turn: Turn) -> AsyncIterator[None]:
        """Serve a session's requests while the block runs; then end what is left of them."""
        self.turns[session_id] = turn
        try:
            yield
        finally:
            del self.turns[session_id]
            self._permissions.cancel(turn)
            if self._terminals is not None:
                with anyio.CancelScope(shield=True):
                    await self._terminals.end_session(session_id)

    async def update(self, params: Any) -> None:
        """Process the params of an update; what is unknown or invalid is ignored."""
        try:
            notification = SessionNotification.model_validate(params)
        except (ValidationError, RecursionError):
            logger.debug("ignored an update that is not valid")
            return
        turn = self.turns.get(notification.session_id)
        if turn is None:
            return  # such as the past of a session that is loaded
        try:
            await turn.update(notification.update)
        except ConnectionLostError:
            pass  # the participant's own task raises it
        except McppError as error:
            logger.warning("an update of the agent is not in the log: %s", error)
        except Exception:  # the connection to the agent must not end by it
            logger.exception("cannot process an update of the agent")

    # --- requests, as `acp.Client` names them ---

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption]
    ) -> RequestPermissionResponse:
        """Serve `session/request_permission`."""
        turn = self.turns.get(session_id)
        chosen = None
        if turn is not None:
            async with _reporting_errors():
                call = await turn.report_call(tool_call)
                chosen = await self._permissions.ask(turn, call, options)
        if chosen is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        outcome = AllowedOutcome(outcome="selected", option_id=chosen)
        return RequestPermissionResponse(outcome=outcome)

    async def read_text_file(
        self, session_id: str, path: str, line: int | None = None, limit: int | None = None
    ) -> ReadTextFileResponse:
        """Serve `fs/read_text_file`."""
        self._turn(session_id)
        folder = self._offered_folder()
        async with _reporting_errors():
            text = await anyio.to_thread.run_sync(folder.read, path, line, limit)
        return ReadTextFileResponse(content=text)

    async def write_text_file(
        self, session_id: str, path: str, content: str
    ) -> WriteTextFileResponse:
        """Serve `fs/write_text_file`."""
        turn = self._turn(session_id)
        folder = self._offered_folder()
        async with _reporting_errors():
            await anyio.to_thread.run_sync(folder.write, path, content)
            await turn.note(f"Wrote {below(turn.folder, path)} ({len(content)} characters)")
        return WriteTextFileResponse()

    async def create_terminal(
        self,
        session_id: str,
        command: str,
        args: list[str] | None = None,
        env: list[EnvVariable] | None = None,
        cwd: str | None = None,
        output_byte_limit: int | None = None,
    ) -> CreateTerminalResponse:
        """Serve `terminal/create`."""
        turn = self._turn(session_id)
        terminals = self._offered_terminals()
        async with _reporting_errors():
            id = await terminals.create(
                session_id,
                command,
                args or (),
                folder=self._folder.folder(cwd),
                environment={each.name: each.value for each in env or ()},
                max_bytes=output_byte_limit,
            )
            await turn.note(f"Runs: {' '.join([command, *(args or ())])[:1000]}")
        return CreateTerminalResponse(terminal_id=id)

    async def terminal_output(self, session_id: str, terminal_id: str) -> TerminalOutputResponse:
        """Serve `terminal/output`."""
        terminals = self._offered_terminals()
        async with _reporting_errors():
            found = terminals.get(session_id, terminal_id)
        status = TerminalExitStatus(exit_code=found.exit_code, signal=found.signal)
        return TerminalOutputResponse(
            output=found.text,
            truncated=found.truncated,
            exit_status=status if found.ended.is_set() else None,
        )

    async def wait_for_terminal_exit(
        self, session_id: str, terminal_id: str
    ) -> WaitForTerminalExitResponse:
        """Serve `terminal/wait_for_exit`."""
        terminals = self._offered_terminals()
        async with _reporting_errors():
            found = terminals.get(session_id, terminal_id)
        await found.ended.wait()
        return WaitForTerminalExitResponse(exit_code=found.exit_code, signal=found.signal)

    async def kill_terminal(self, session_id: str, terminal_id: str) -> KillTerminalResponse:
        """Serve `terminal/kill`."""
        terminals = self._offered_terminals()
        async with _reporting_errors():
            await terminals.kill(session_id, terminal_id)
        return KillTerminalResponse()

    async def release_terminal(self, session_id: str, terminal_id: str) -> ReleaseTerminalResponse:
        """Serve `terminal/release`."""
        terminals = self._offered_terminals()
        async with _reporting_errors():
            await terminals.release(session_id, terminal_id)
        return ReleaseTerminalResponse()

    def _turn(self, session_id: str) -> Turn:
        turn = self.turns.get(session_id)
        if turn is None:
            raise RequestError(_REFUSED, "this session has no question")
        return turn

    def _offered_folder(self) -> WorkingFolder:
        if not self._offers_files:
            raise RequestError(_REFUSED, "this client offers no files")
        return self._folder

    def _offered_terminals(self) -> Terminals:
        if self._terminals is None:
            raise RequestError(_REFUSED, "this client offers no terminals")
        return self._terminals


@asynccontextmanager
async def _reporting_errors() -> AsyncIterator[None]:
    """Report errors of ours to the agent. Raises RequestError."""
    try:
        yield
    except FileMissingError as error:
        raise RequestError(_NOT_FOUND, str(error)) from None
    except McppError as error:
        raise RequestError(_REFUSED, str(error)) from None
