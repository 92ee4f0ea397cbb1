"""A participant's connection to the pod, shared by all MCP clients that use its token."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from mcpp import Gap, Kind, Message, Participant, Pod, ToolCall, kinds
from mcpp.outcomes import ends_context
from mcpp_agents.mcp_server.client_calls import QUESTIONS, ClientCalls
from mcpp_agents.mcp_server.offers import Offers
from mcpp_agents.mcp_server.tool_handlers import PodToolHandlers
from mcpp_agents.toolbox import Toolbox

_TURN: Final = "reasoning"
_LOG: Final = str(Kind(kinds.NOTIFICATION, "notifications/message"))

Observer = Callable[[Message, tuple[str, ...]], Awaitable[None]]


class AgentTurns:
    """The reasoning contexts that an agent has not concluded. Calls of its tools belong there."""

    def __init__(self, pod: Pod, agent: str | None) -> None:
        self._pod = pod
        self._agent = agent
        self._open: dict[str, None] = {}

    def observe(self, message: Message) -> None:
        """Process a message of the log: the agent begins or concludes a context, or restarts."""
        if message.kind == kinds.PRESENCE:
            joined = message.payload.get("participant")
            if isinstance(joined, dict) and joined.get("id") == self._agent:
                self._open.clear()  # what an earlier process of it has left open
        elif message.sender == self._agent and message.context is not None:
            known = self._pod.contexts.get(message.context.id)
            if ends_context(message.envelope):
                self._open.pop(message.context.id, None)
            elif known is not None and (known.type, known.creator) == (_TURN, self._agent):
                self._open[known.id] = None

    def current(self) -> str | None:
        """Return the only open context; None if several are: it is not known whose call it is."""
        self._open = {id: None for id in self._open if id in self._pod.contexts}
        return next(iter(self._open)) if len(self._open) == 1 else None


class SharedPod:
    """A participant for MCP clients: it lists, calls, and answers the pod's questions.

    With `agent`, the calls belong to the reasoning context that this other participant has open.

    Owns the log for `pod_read`, the lists of what others offer, and the clients' calls. Run
    `listen` alongside.
    """

    def __init__(self, pod: Pod, agent: str | None = None) -> None:
        self.pod = pod
        self.toolbox = Toolbox(pod)
        self.offers = Offers(pod)
        self._turns = AgentTurns(pod, agent)
        self.handlers = PodToolHandlers(pod, self.toolbox, self._turns.current)
        self.calls = ClientCalls(pod, self._turns.current)
        self.observers: list[Observer] = []
        self._agent = Participant(pod.me)
        self._agent.observe(self._observe)
        for method in QUESTIONS:
            self._agent.method(method)(self._answerer(method))

    async def listen(self) -> None:
        """Process the pod's messages until the connection is lost for good."""
        await self._agent.serve(self.pod)

    async def close(self) -> None:
        """Withdraw the clients' proposals that are still open."""
        await self.handlers.close()

    async def _observe(self, message: Message | Gap) -> None:
        if isinstance(message, Gap):
            return
        self.handlers.observe(message)
        self._turns.observe(message)
        changed = self.offers.observe(message)
        if self.toolbox.observe(message):
            changed = ("tools/list", *changed)
        if message.kind == _LOG and not message.replayed:
            await self.calls.log(message)
        for observer in self.observers:
            await observer(message, changed)

    def _answerer(
        self, method: str
    ) -> Callable[[dict[str, Any], ToolCall], Awaitable[dict[str, Any]]]:
        async def answer(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
            return await self.calls.answer(method, params, call)

        return answer
