"""An agent of another framework as a participant: what all frameworks have in common."""

import logging
from abc import ABC, abstractmethod
from typing import Any, Final

import anyio

from mcpp import Gap, McppError, Message, Participant, Pod, ToolCall
from mcpp.client.factory import new_id
from mcpp.client.local_pod import Address
from mcpp.client.tasks import background
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp.transient import cut
from mcpp.transports.token_sources import TokenSource
from mcpp_agents.adapters.turn import FrameworkTurn, Talk
from mcpp_agents.conversations import Conversations
from mcpp_agents.replies import send_reply
from mcpp_agents.toolbox import Toolbox, withdraw_old_proposals

__all__ = ["FrameworkAgent"]

_AT_ONCE: Final = 8
_DESCRIPTION: Final = "An agent."

logger = logging.getLogger("mcpp.adapters")


class FrameworkAgent(ABC):
    """A framework's agent in a pod. Owns its conversations; a subclass runs the agent.

    A chat addressed to it is a question. Its thoughts and calls are in a context of type
    `reasoning`, its answer is shown while it is written, and it is offered the pod's tools. A tool
    that needs approval is proposed.
    """

    def __init__(self) -> None:
        self._talks = Conversations(lambda: Talk(new_id()))
        self._turns: dict[str, FrameworkTurn] = {}  # by question
        self._toolbox: Toolbox | None = None

    @abstractmethod
    async def run(self, turn: FrameworkTurn) -> str:
        """Run the agent on a question and return its answer."""

    async def join(
        self,
        name: str,
        url: str | Address | None = None,
        *,
        token: TokenSource | None = None,
        description: str = _DESCRIPTION,
    ) -> None:
        """Join a pod and answer until this is cancelled or the connection ends for good.

        Args:
            name: the participant's name.
            url: the gateway's address; by default, as `mcpp.connect` finds it.
            token: the participant's token.
            description: what the agent is, in a sentence; part of its card.
        """
        await self.participant(name, description=description).run(url, token=token)

    def participant(self, name: str, *, description: str = _DESCRIPTION) -> Participant:
        """Return the participant, for a program that runs it itself or tests it."""
        agent = Participant(name, description=description)
        agent.on_join(self._join)
        agent.observe(self._observe)
        agent.on_resume(withdraw_old_proposals)
        agent.on("chat", concurrency=_AT_ONCE, order="free")(self._hear)
        agent.method(rpc.TOOLS_CALL)(self._serve_approved)
        return agent

    def _join(self, pod: Pod) -> None:
        self._toolbox = Toolbox(pod)
        self._toolbox.refresh()

    def _observe(self, item: Message | Gap) -> None:
        if isinstance(item, Message) and self._toolbox is not None:
            self._toolbox.observe(item)

    async def _hear(self, message: Message) -> None:
        if message.is_for_me and not self._talks.is_thanks(message):
            talk = self._talks.of(message)
            async with talk.lock:
                await self._answer(message, talk)

    async def _answer(self, question: Message, talk: Talk) -> None:
        assert self._toolbox is not None
        thinking = question.child("reasoning", trigger=question.id, asked_by=question.sender)
        tools = await self._toolbox.list_tools()
        turn = self._turns[question.id] = FrameworkTurn(
            question, thinking, talk, list(tools.values())
        )
        try:
            async with thinking, background() as tasks:
                tasks.start_soon(turn.stop_when_cancelled)
                text = await self.run(turn)
                await thinking.conclude({"text": cut(text)})
        except McppError as error:
            logger.warning("cannot answer %s: %s", question.sender, error)
            text = f"I cannot answer this now: {error}"
        except Exception as error:
            # Whatever the framework, its model or its tools raise: the asker gets a reply.
            logger.exception("cannot answer %s", question.sender)
            text = f"I cannot answer this now: {type(error).__name__}"
        except anyio.get_cancelled_exc_class():
            await turn.out.end()
            raise
        finally:
            turn.end()
            del self._turns[question.id]
        await send_reply(turn.out, text or "I have no answer to this.")
        self._talks.note(turn.out.envelope)

    async def _serve_approved(self, params: dict[str, Any], call: ToolCall) -> Any:
        """Serve the call by which a participant approves a proposal of this agent."""
        for turn in self._turns.values():
            approval = turn.approvals.get(call.envelope.correlation_id or "")
            if approval is not None and not approval.decided.is_set():
                approval.decide(True)
                await approval.finished.wait()
                assert approval.result is not None
                return approval.result.to_json()
        raise Failure(rpc.INVALID_PARAMS, f"{call.pod.me} offers no tools")
