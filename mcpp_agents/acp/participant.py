"""A coding agent as a participant: chats to it are prompts, its answers are replies."""

import asyncio
import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import anyio
from acp.helpers import text_block
from acp.schema import PromptResponse

from mcpp import ConnectionLostError, Gap, McppError, Message, Participant, Pod, ToolCall, kinds
from mcpp.client.local_pod import Address
from mcpp.client.tasks import background, until_signal
from mcpp.outcomes import ends_context
from mcpp.protocol import rpc
from mcpp_agents.acp.agent_process import (
    ANSWER_ERRORS,
    AgentError,
    CodingAgent,
    Launch,
    RunningAgent,
)
from mcpp_agents.acp.client import BridgeClient
from mcpp_agents.acp.files import WorkingFolder
from mcpp_agents.acp.limits import AcpLimits
from mcpp_agents.acp.permissions import Permissions
from mcpp_agents.acp.pod_tools import SUFFIX
from mcpp_agents.acp.sessions import MAIN, SessionFile, Sessions
from mcpp_agents.acp.terminals import Terminals
from mcpp_agents.acp.turn import Turn
from mcpp_agents.cli.joining import announce_join
from mcpp_agents.missed import missed_chats
from mcpp_agents.recent_ids import RecentIds
from mcpp_agents.toolbox import withdraw_old_proposals

_MAX_PARENTS: Final = 100
_STOPPED: Final = "I was stopped before I had an answer."
# Chats that were sent while no bridge ran: sought in so many messages, answered up to this age.
_PAST: Final = 500
_MISSED_AGE: Final = timedelta(hours=1)

logger = logging.getLogger("mcpp.acp")


@dataclass(frozen=True, slots=True)
class AcpSettings:
    """What an agent is given, and who decides on what it asks.

    Args:
        launch: how to start it.
        servers: MCP servers to hand to it.
        approvers: the participants that can decide; None for all others.
        mode: the agent's mode for its sessions, such as `plan`; None for its own default.
        sessions: where to keep the ids of its sessions; None keeps them in memory only.
        limits: bounds on its work.
    """

    launch: Launch
    servers: Sequence[Any] = ()
    approvers: Collection[str] | None = None
    mode: str | None = None
    sessions: Path | None = None
    limits: AcpLimits = field(default_factory=AcpLimits)


class AcpBridge:
    """An agent and its participant. Run `keep_running` beside the participant."""

    def __init__(self, name: str, settings: AcpSettings) -> None:
        launch, limits = settings.launch, settings.limits
        folder = WorkingFolder(launch.folder, limits.file_bytes)
        own = (name, name + SUFFIX)
        self._limits = limits
        self._folder = str(folder.path)
        self._permissions = Permissions(own, settings.approvers, folder.path, limits)
        self._terminals = Terminals(launch.environment, limits) if launch.offers_terminals else None
        self._client = BridgeClient(
            self._permissions, folder, self._terminals, offers_files=launch.offers_files
        )
        self._agent = CodingAgent(launch, self._client, self._client.update, limits)
        kept = SessionFile(settings.sessions)
        self._sessions = Sessions(kept, folder.path, settings.servers, limits, settings.mode)
        self._turns: set[Turn] = set()  # also those that wait for their turn
        self._turn_ended = anyio.Event()
        self._is_ending = False
        self._own_chats = RecentIds()
        program = Path(launch.command[0]).name
        self._missed: dict[str, anyio.Event] = {}  # by session: all that was missed is answered
        self._room = anyio.CapacityLimiter(limits.questions)  # also for what was missed
        self.participant = Participant(name, description=f"A coding agent ({program}).", last=_PAST)
        self.participant.on_history(self._catch_up)
        self.participant.on(kinds.CHAT, concurrency=limits.questions)(self._hear)
        self.participant.observe(self._observe)
        self.participant.on_resume(withdraw_old_proposals)
        self.participant.method(rpc.TOOLS_CALL)(self._serve)
        if self._terminals is not None:
            self.participant.task(self._serve_terminals)

    @property
    def agent(self) -> CodingAgent:
        """The agent; run its `keep_running` beside the participant."""
        return self._agent

    async def end_questions(self) -> None:
        """Cancel the questions that are being answered, and tell the askers; accept no others."""
        self._is_ending = True
        with anyio.move_on_after(self._limits.end_seconds, shield=True):
            for turn in self._turns:
                turn.scope.cancel()
            while self._turns:
                await self._turn_ended.wait()

    async def _serve_terminals(self, pod: Pod) -> None:
        assert self._terminals is not None
        await self._terminals.serve()

    async def _serve(self, params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        return await self._permissions.serve(params, call)

    # --- following the log ---

    def _observe(self, item: Message | Gap) -> None:
        self._permissions.observe(item)
        if isinstance(item, Gap):
            return
        if item.sender == item.pod.me and item.kind == kinds.CHAT:
            self._own_chats.add(item.id)
        if item.kind == rpc.CANCELLED_KIND:
            # The SDK does so for live chats, but not for those that were missed.
            for turn in self._turns:
                asked = turn.question
                if asked.id == item.correlation_id and asked.sender == item.sender:
                    turn.scope.cancel()
        if item.context is not None and ends_context(item.envelope):
            ended = item.pod.contexts.get(item.context.id)
            if ended is None or ended.creator == item.sender:
                self._cancel_below(item.context.id)

    def _cancel_below(self, context_id: str) -> None:
        """Cancel the questions in a context that has ended, and in those below it."""
        for turn in self._turns:
            question = turn.question
            place = None if question.context is None else question.context.id
            for _ in range(_MAX_PARENTS):
                if place is None:
                    break
                if place == context_id:
                    turn.scope.cancel()
                    break
                known = question.pod.contexts.get(place)
                place = None if known is None else known.parent

    def _is_asked(self, message: Message) -> bool:
        # A reply to our answer is no question: two agents would thank each other endlessly.
        return message.is_for_me and message.correlation_id not in self._own_chats

    # --- answering ---

    def _catch_up(self, past: list[Message]) -> None:
        """Answer what was asked while no bridge ran. What one began is not done a second time."""
        groups: dict[str, list[tuple[Turn, bool]]] = {}
        for message, is_begun in missed_chats(past, _MISSED_AGE):
            turn = self._add_turn(message)
            groups.setdefault(_session_key(message), []).append((turn, is_begun))
        for key, turns in groups.items():
            self._missed[key] = anyio.Event()
            turns[0][0].question.pod.start_soon(self._answer_missed, key, turns)

    async def _answer_missed(self, key: str, turns: list[tuple[Turn, bool]]) -> None:
        """Answer the missed chats of a session. One that cannot be answered keeps no other back."""
        try:
            for turn, is_begun in turns:
                try:
                    if is_begun:
                        with turn.scope:
                            await turn.reply(_STOPPED)
                    else:
                        await self._answer(turn)
                except ConnectionLostError:
                    raise
                except McppError as error:
                    logger.warning("cannot answer %s: %s", turn.question.sender, error)
        finally:
            self._remove_turns(turn for turn, _ in turns)
            self._missed.pop(key).set()

    async def _hear(self, message: Message) -> None:
        if self._is_asked(message):
            missed = self._missed.get(_session_key(message))
            await self._answer(self._add_turn(message), missed)

    def _add_turn(self, message: Message) -> Turn:
        turn = Turn(message, self._limits, self._folder)
        if self._is_ending:
            turn.scope.cancel()
        self._turns.add(turn)
        return turn

    def _remove_turns(self, turns: Iterable[Turn]) -> None:
        self._turns.difference_update(turns)
        self._turn_ended.set()
        self._turn_ended = anyio.Event()

    async def _answer(self, turn: Turn, after: anyio.Event | None = None) -> None:
        """Answer a question, unless it is given up or the bridge ends before its turn comes."""
        is_begun = False
        try:
            with turn.scope:
                if after is not None:
                    await after.wait()
                async with self._room:
                    is_begun = True
                    await self._answer_now(turn)
            if self._is_ending and is_begun and turn.scope.cancelled_caught:
                await turn.reply(_STOPPED)
        finally:
            try:
                await turn.end()
            finally:
                self._remove_turns([turn])

    async def _answer_now(self, turn: Turn) -> None:
        try:
            async with turn.thinking:
                await turn.start()
                await turn.finish(await self._work(turn))
        except ConnectionLostError:
            raise
        except McppError as error:
            logger.warning("cannot answer %s: %s", turn.question.sender, error)
            await turn.reply(f"I cannot answer this now: {error}")

    async def _work(self, turn: Turn) -> PromptResponse:
        """Have the agent work on a question. Raises AgentError."""
        question = turn.question
        key = _session_key(question)
        agent = await self._agent.running()
        session_id, is_new = await self._sessions.open(agent, key)
        prompt: list[Any] = [text_block(f"@{question.sender} writes:\n\n{question.text}")]
        if is_new:
            prompt.insert(0, text_block(_introduction(question.pod)))
        async with self._client.answering(session_id, turn):
            asking = asyncio.create_task(agent.connection.prompt(session_id, prompt))
            try:
                await self._wait(asking, turn)
            finally:
                if not asking.done():
                    self._permissions.cancel(turn)  # the agent waits for the answers
                    await self._cancel(asking, agent, session_id, key)
        try:
            response: PromptResponse = asking.result()
        except ANSWER_ERRORS as error:
            raise AgentError(f"the coding agent failed: {error}") from None
        if response.stop_reason == "cancelled" and not turn.is_rejected:
            raise AgentError("the coding agent has cancelled it")
        return response

    async def _wait(self, asking: asyncio.Task[PromptResponse], turn: Turn) -> None:
        """Wait for the agent's answer. Raises AgentError if it takes too long."""
        limits = self._limits
        ends_at = anyio.current_time() + limits.question_seconds
        while True:
            now = anyio.current_time()
            silent_at = turn.active_at + limits.silence_seconds
            due = now + limits.silence_seconds if turn.waits_for_person else silent_at
            if now >= min(due, ends_at):
                raise AgentError(
                    f"the coding agent took too long (silent for {now - turn.active_at:.0f} s)"
                )
            await asyncio.wait({asking}, timeout=min(due, ends_at) - now)
            if asking.done():
                return

    async def _cancel(
        self, asking: asyncio.Task[PromptResponse], agent: RunningAgent, session_id: str, key: str
    ) -> None:
        """Tell the agent to stop, and wait for that; give the session up if it does not.

        While the bridge ends, the agent ends, too: its session stays, and the asker has to be told.
        """
        seconds = self._limits.cancel_seconds
        if self._is_ending:
            seconds = min(seconds, self._limits.end_seconds / 2)
        with anyio.move_on_after(seconds, shield=True) as waiting:
            try:
                await agent.connection.cancel(session_id=session_id)
                await asyncio.wait({asking})
            except ANSWER_ERRORS:
                pass  # it has ended, and its next process can load the session
        if waiting.cancelled_caught and not asking.done() and not self._is_ending:
            logger.warning("the coding agent did not stop; its session is given up")
            self._sessions.forget(agent, key)
        asking.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(asking, return_exceptions=True)


async def run(name: str, settings: AcpSettings, address: Address) -> None:
    """Run the agent and its participant until a signal arrives. Raises AgentError."""
    bridge = AcpBridge(name, settings)
    announce_join(bridge.participant, "bridge")

    # As for an MCP server: the agent is killed with its children after a few seconds.
    await until_signal(lambda: _work(bridge, address), ends_by_itself=True)


async def _work(bridge: AcpBridge, address: Address) -> None:
    """Run until cancelled; then end the questions while the pod and the agent are still there."""
    working = anyio.CancelScope(shield=True)

    async def end_when_cancelled() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await bridge.end_questions()
            working.cancel()

    async with background() as watching:
        watching.start_soon(end_when_cancelled)
        with working:
            async with background() as tasks:
                await tasks.start(bridge.agent.keep_running)
                await bridge.participant.run(address)


def _session_key(question: Message) -> str:
    return MAIN if question.context is None else question.context.id


def _introduction(pod: Pod) -> str:
    others = ", ".join(f"@{name}" for name in sorted(pod.participants) if name != pod.me)
    return (
        f"You are @{pod.me} in the pod {pod.name!r}, a chat room of people, agents and tools. "
        f"Present: {others[:2000]}. Your last message of each turn is sent to the room as your "
        "reply; name a participant as @NAME in it to ask it something. If you have the MCP server "
        "`pod`, its tools read the room, ask participants and call their tools."
    )
