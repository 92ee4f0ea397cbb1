"""The agent's sessions: one for each context of the pod, and one for its main stream.

Their ids are kept in a file, so that a bridge that was restarted goes on with the sessions of the
one before, where the agent can load them.
"""

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from acp import RequestError
from acp.schema import SessionModeState

from mcpp_agents.acp.agent_process import ANSWER_ERRORS, AgentError, RunningAgent
from mcpp_agents.acp.limits import AcpLimits

MAIN: Final = ""  # the key of the main stream; contexts have their ids
_MAX_KEPT: Final = 1000
_MAX_ID_CHARS: Final = 512
_AUTH_REQUIRED: Final = -32000

logger = logging.getLogger("mcpp.acp")


def session_file(name: str, pod: str, launch: Sequence[str]) -> Path:
    """Return where a bridge keeps its session ids: by its name, pod, folder and command."""
    state = os.environ.get("XDG_STATE_HOME")
    folder = (Path(state) if state else Path.home() / ".local" / "state") / "mcpp" / "acp"
    digest = sha256(msgspec.json.encode([name, pod, *launch])).hexdigest()
    return folder / f"{digest[:32]}.json"


class SessionFile:
    """Session ids by context, in a file that only this user can read (0600)."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._ids: dict[str, str] = {}
        with suppress(OSError, msgspec.DecodeError):
            if path is not None:
                self._ids = msgspec.json.decode(path.read_bytes(), type=dict[str, str])

    def get(self, key: str) -> str | None:
        """Return the session of a context, None if there is none."""
        return self._ids.get(key)

    def set(self, key: str, session_id: str) -> None:
        """Keep the session of a context as the newest; the oldest is forgotten beyond a limit."""
        if self._ids.get(key) != session_id:
            self._ids.pop(key, None)
            self._ids[key] = session_id
            while len(self._ids) > _MAX_KEPT:
                del self._ids[next(iter(self._ids))]
            self._write()

    def remove(self, key: str) -> None:
        """Forget the session of a context."""
        if self._ids.pop(key, None) is not None:
            self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        new = self._path.with_suffix(f".{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(self._ids))
            new.replace(self._path)
        except OSError as error:
            logger.warning("cannot keep the agent's sessions in %s: %s", self._path, error)


class Sessions:
    """Opens sessions of an agent: new ones, and those of an earlier process again."""

    def __init__(
        self,
        kept: SessionFile,
        folder: Path,
        servers: Sequence[Any],
        limits: AcpLimits,
        mode: str | None = None,
    ) -> None:
        self._kept = kept
        self._folder = str(folder)
        self._servers = list(servers)
        self._limits = limits
        self._mode = mode

    async def open(self, agent: RunningAgent, key: str) -> tuple[str, bool]:
        """Return the session of a context, and whether it is new. Raises AgentError."""
        if key in agent.sessions:
            session_id = agent.sessions.pop(key)
            agent.sessions[key] = session_id
            return session_id, False
        with anyio.move_on_after(self._limits.start_seconds):
            session_id, is_new, modes = await self._load_or_create(agent, key)
            if not 0 < len(session_id) <= _MAX_ID_CHARS or session_id in agent.sessions.values():
                raise AgentError("the coding agent opened a session with an invalid id")
            await self._choose_mode(agent, session_id, modes)
            agent.sessions[key] = session_id
            self._kept.set(key, session_id)
            await self._close_unused(agent)
            return session_id, is_new
        raise AgentError(f"the coding agent opened no session in {self._limits.start_seconds:g} s")

    def forget(self, agent: RunningAgent, key: str) -> None:
        """Use another session for this context from now on: this one does not answer."""
        agent.sessions.pop(key, None)
        self._kept.remove(key)

    async def _load_or_create(
        self, agent: RunningAgent, key: str
    ) -> tuple[str, bool, SessionModeState | None]:
        kept = self._kept.get(key)
        if kept is not None and agent.can_load:
            try:
                loaded = await agent.connection.load_session(
                    cwd=self._folder, session_id=kept, mcp_servers=self._servers
                )
            except ANSWER_ERRORS as error:
                logger.warning("the agent cannot load its session %.100s: %s", kept, error)
            else:
                # Gemini CLI sends the session's past after its answer: it is no part of the reply.
                await agent.until_quiet(self._limits.settle_seconds)
                return kept, False, loaded.modes
        try:
            opened = await agent.connection.new_session(cwd=self._folder, mcp_servers=self._servers)
        except RequestError as error:
            hint = "; sign in with its own command first" if error.code == _AUTH_REQUIRED else ""
            raise AgentError(f"the coding agent opened no session: {error}{hint}") from None
        except ANSWER_ERRORS as error:
            raise AgentError(f"the coding agent opened no session: {error}") from None
        return opened.session_id, True, opened.modes

    async def _choose_mode(
        self, agent: RunningAgent, session_id: str, modes: SessionModeState | None
    ) -> None:
        """Set the mode that was asked for. Raises AgentError: it may be what makes it ask."""
        if self._mode is None or (modes is not None and modes.current_mode_id == self._mode):
            return
        known = [] if modes is None else [each.id for each in modes.available_modes]
        if self._mode not in known:
            names = ", ".join(known)[:_MAX_ID_CHARS] or "no modes"
            raise AgentError(f"the coding agent has no mode {self._mode!r}, but: {names}")
        try:
            await agent.connection.set_session_mode(session_id=session_id, mode_id=self._mode)
        except ANSWER_ERRORS as error:
            raise AgentError(f"the coding agent did not set its mode: {error}") from None

    async def _close_unused(self, agent: RunningAgent) -> None:
        while len(agent.sessions) > self._limits.sessions:
            session_id = agent.sessions.pop(next(iter(agent.sessions)))
            if agent.can_close:
                with suppress(*ANSWER_ERRORS):
                    await agent.connection.close_session(session_id=session_id)
