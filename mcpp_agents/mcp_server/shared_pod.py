"""A participant's connection to the pod, shared by all MCP clients that use its token."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from mcpp import Gap, Kind, Message, Participant, Pod, ToolCall, kinds
from mcpp_agents.mcp_server.client_calls import QUESTIONS, ClientCalls
from mcpp_agents.mcp_server.offers import Offers
from mcpp_agents.mcp_server.tool_handlers import PodToolHandlers
from mcpp_agents.toolbox import Toolbox

_LOG: Final = str(Kind(kinds.NOTIFICATION, "notifications/message"))

Observer = Callable[[Message, tuple[str, ...]], Awaitable[None]]


class SharedPod:
    """A participant for MCP clients: it lists, calls, and answers the pod's questions.

    Owns the log for `pod_read`, the lists of what others offer, and the clients' calls. Run
    `listen` alongside.
    """

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.toolbox = Toolbox(pod)
        self.offers = Offers(pod)
        self.handlers = PodToolHandlers(pod, self.toolbox)
        self.calls = ClientCalls(pod)
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
