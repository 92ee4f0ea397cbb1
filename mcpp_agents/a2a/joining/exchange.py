"""One task of a remote agent, as a context of the pod."""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from a2a.types import Message

from mcpp import ContextScope, kinds
from mcpp.payloads import Conclusion, ContextFailure
from mcpp.transient import cut
from mcpp_agents.a2a.joining.remote_agent import RemoteAgent
from mcpp_agents.a2a.joining.remote_reply import RemoteAgentError, RemoteReply

# A remote agent that has not finished by then has failed.
TASK_SECONDS: Final = 3600.0
_MAX_REMARKS: Final = 1000

OnText = Callable[[str], Awaitable[None]]


class Exchange:
    """A conversation with a remote agent about one task. Owns the reply and the task's context.

    `scope` is the context that is used if the agent makes a task of it; a plain answer needs none.
    """

    def __init__(self, agent: RemoteAgent, scope: ContextScope, context_id: str = "") -> None:
        self.reply = RemoteReply(context_id=context_id)
        self._agent = agent
        self._scope = scope
        self.is_cancelled = False
        self._is_open = False
        self._remarks = 0

    async def send(self, message: Message, on_text: OnText) -> RemoteReply:
        """Send a message; return when the agent has finished or waits for something.

        The task's context tells what happens meanwhile, and how the task ended. Raises
        RemoteAgentError.
        """
        reply = self.reply
        try:
            with anyio.fail_after(TASK_SECONDS):
                async for update in self._agent.send(message, reply):
                    await self._tell(update.remark)
                    if update.text:
                        await on_text(update.text)
        except TimeoutError:
            if reply.task_id:
                await self._agent.cancel(reply.task_id)
            problem = f"the agent took more than {TASK_SECONDS:g} s"
            await self._conclude(_failure("RemoteAgentError", problem))
            raise RemoteAgentError(problem) from None
        except RemoteAgentError as error:
            await self._conclude(_failure("RemoteAgentError", str(error)))
            raise
        if not (reply.is_working or reply.needs_input or reply.needs_login):
            await self._conclude(_conclusion(reply))
        return reply

    async def cancel(self) -> None:
        """Cancel the remote task and its context, even while this task is cancelled."""
        self.is_cancelled = True
        if self.reply.task_id:
            await self._agent.cancel(self.reply.task_id)
        with anyio.move_on_after(2.0, shield=True):
            await self._conclude(Conclusion(outcome="cancelled"))

    async def _tell(self, remark: str) -> None:
        """Open the context when there is a task, and add what the agent says about its work."""
        if self.reply.state is None:
            return
        if not self._is_open:
            self._is_open = True
            await self._think(f"The task is {self.reply.task_id}.")
        is_asked = self.reply.needs_input or self.reply.needs_login
        if remark and (self.reply.is_working or is_asked) and self._remarks < _MAX_REMARKS:
            self._remarks += 1
            await self._think(remark)

    async def _think(self, thought: str) -> None:
        await self._scope.send(kinds.REFLECTION, {"thought": cut(thought)})

    async def _conclude(self, conclusion: Conclusion) -> None:
        if self._is_open:
            self._is_open = False
            await self._scope.conclude(conclusion)


def _conclusion(reply: RemoteReply) -> Conclusion:
    if reply.outcome == "failed":
        return _failure("TaskFailed", reply.message)
    if reply.outcome == "cancelled":
        return Conclusion(outcome="cancelled", text=cut(reply.message) or None)
    return Conclusion(text=cut(reply.text))


def _failure(type: str, message: str) -> Conclusion:
    return Conclusion(outcome="failed", error=ContextFailure(type=type, message=cut(message)))


def problem_of(reply: RemoteReply) -> str:
    """Return what to say of a task that was not completed."""
    ended = "was cancelled" if reply.outcome == "cancelled" else "failed"
    return f"The task {ended}: {reply.message}" if reply.message else f"The task {ended}."
