"""The participant of a remote A2A agent.

A chat addressed to it is a message to the agent, and the answer is the reply. Each skill is a tool.
If the agent asks back, the question goes to the asker: as a question of the pod
(`elicitation/create`) if that one's card says that it answers those, as an MCP server's questions
do if it was a tool call, and as a chat otherwise. The next chat of the asker is then the answer.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from a2a.types import AgentSkill, Message, Role

import mcpp
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.a2a.joining.exchange import Exchange, OnText, problem_of
from mcpp_agents.a2a.joining.remote_agent import RemoteAgent
from mcpp_agents.a2a.joining.remote_reply import RemoteAgentError, RemoteReply
from mcpp_agents.a2a.parts import data_part, new_message, text_part
from mcpp_agents.bridge.questions import ELICIT, Questions
from mcpp_agents.conversations import Conversations
from mcpp_agents.replies import send_reply

# The metadata of a message that names the skill to use: A2A itself has no such member.
SKILL: Final = "skillId"
_MAX_SKILLS: Final = 200
_MAX_DESCRIPTION: Final = 4000
_MAX_QUESTIONS: Final = 10
_AT_ONCE: Final = 16
_ANSWER_SCHEMA: Final = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}

logger = logging.getLogger("mcpp.a2a")


@dataclass(slots=True)
class _Conversation:
    """What a participant and the agent talk about in one context. Its messages are in order."""

    context_id: str = ""
    waiting: Exchange | None = None  # the task that waits for the next chat
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class JoinedAgent:
    """A remote agent as a participant. Owns its conversations; run `participant`."""

    def __init__(self, name: str, agent: RemoteAgent) -> None:
        self._agent = agent
        self._conversations = Conversations(_Conversation)
        self._caller_only = Questions(answerers=())
        self._anyone = Questions()
        card = agent.card
        self.participant = mcpp.Participant(name, description=card.description[:_MAX_DESCRIPTION])
        self.participant.on("chat", concurrency=_AT_ONCE, order="free")(self._chat)
        for skill in card.skills[:_MAX_SKILLS]:
            self._offer(skill)

    def _offer(self, skill: AgentSkill) -> None:
        examples = "".join(f"\nExample: {each}" for each in skill.examples[:5])
        about = f"{skill.name}: {skill.description}{examples}"[:_MAX_DESCRIPTION]
        try:
            self.participant.tool(name=skill.id, description=about)(self._tool(skill.id))
        except (TypeError, ValueError) as error:
            logger.warning("skill %r is not offered: %s", skill.id[:100], error)

    # --- chats ---

    async def _chat(self, message: mcpp.Message) -> None:
        if not message.is_for_me:
            return
        talk = self._conversations.of(message)
        if self._conversations.is_thanks(message) and talk.waiting is None:
            return
        async with talk.lock:
            await self._answer(message, talk)

    async def _answer(self, message: mcpp.Message, talk: _Conversation) -> None:
        exchange, talk.waiting = talk.waiting, None
        if exchange is None:
            scope = message.child("task", title=message.text[:100], asked_by=message.sender)
            exchange = Exchange(self._agent, scope, talk.context_id)
        out = message.stream()
        call = mcpp.ToolCall(message.pod, message.envelope)
        try:
            ask = self._caller_only if await _answers_questions(message) else None
            asked = new_message(Role.ROLE_USER, text_part(message.text))
            reply = await self._converse(exchange, asked, out.write, call, ask)
        except RemoteAgentError as error:
            text = f"I cannot answer this now: {error}"
        except BaseException:
            await out.end()
            raise
        else:
            talk.context_id = reply.context_id
            text = _said(reply)
            if exchange.is_cancelled:
                text = "The task was cancelled: its question was declined."
            elif reply.needs_input or reply.needs_login:
                talk.waiting = exchange
        await send_reply(out, text)
        self._conversations.note(out.envelope)

    # --- skills ---

    def _tool(self, skill: str) -> Callable[..., Awaitable[mcpp.ToolResult]]:
        async def use(
            message: str, call: mcpp.ToolCall, data: dict[str, Any] | None = None
        ) -> mcpp.ToolResult:
            parts = [text_part(message)] + ([] if data is None else [data_part(data)])
            asked = new_message(Role.ROLE_USER, *parts, metadata={SKILL: skill})
            exchange = Exchange(self._agent, call.child("task", title=message[:100]))
            try:
                reply = await self._converse(exchange, asked, call.write, call, self._anyone)
            except RemoteAgentError as error:
                raise Failure(rpc.INTERNAL_ERROR, str(error)) from None
            if reply.needs_input or reply.needs_login:
                await exchange.cancel()
                return mcpp.ToolResult([{"type": "text", "text": _said(reply)}], is_error=True)
            if reply.outcome != "concluded":
                text = problem_of(reply)
                return mcpp.ToolResult([{"type": "text", "text": text}], is_error=True)
            data = None if reply.data is None else dict(reply.data)
            return mcpp.ToolResult(reply.content, data)

        return use

    # --- both ---

    async def _converse(
        self,
        exchange: Exchange,
        message: Message,
        on_text: OnText,
        call: mcpp.ToolCall,
        questions: Questions | None,
    ) -> RemoteReply:
        """Send a message and put the agent's questions, as long as they are answered.

        If this is cancelled, the remote task is cancelled.
        """
        try:
            reply = await exchange.send(message, on_text)
            for _ in range(_MAX_QUESTIONS):
                if not reply.needs_input or questions is None:
                    break
                params = {"message": reply.message, "requestedSchema": _ANSWER_SCHEMA}
                answer = await questions.ask(ELICIT, params, call)
                content = answer.get("content")
                if answer.get("action") != "accept" or not isinstance(content, dict):
                    if rpc.REASON not in (answer.get("_meta") or {}):  # a person has declined
                        await exchange.cancel()
                    break
                text = str(content.get("answer", ""))
                reply = await exchange.send(new_message(Role.ROLE_USER, text_part(text)), on_text)
        except anyio.get_cancelled_exc_class():
            await exchange.cancel()
            raise
        return reply


async def _answers_questions(message: mcpp.Message) -> bool:
    card = await message.pod.cards.get(message.sender)
    return card is not None and "elicitation" in card.answers


def _said(reply: RemoteReply) -> str:
    """Return what to tell the asker."""
    if reply.needs_input:
        return reply.message or "The agent needs more input."
    if reply.needs_login:
        return f"The agent needs an authorization before it goes on. {reply.message}".strip()
    if reply.outcome != "concluded":
        return problem_of(reply)
    return reply.text or "The agent has finished without an answer."


def name_of(title: str) -> str:
    """Return a participant's name for an agent, from what its card calls it."""
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return name[:64].strip("-") or "agent"
