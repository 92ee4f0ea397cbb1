"""The model agent: a model with its instructions and limits, ready to join a pod."""

from typing import Any, Final

from mcpp import Gap, Message, Options, Participant, Pod, ToolCall
from mcpp.protocol import rpc
from mcpp_agents.memory import MemoryStore
from mcpp_agents.memory.serving.agent_memory import AgentMemory
from mcpp_agents.model.limits import ModelLimits
from mcpp_agents.model.providers import Provider
from mcpp_agents.model.sampling import METHOD, Sampler
from mcpp_agents.model.session import ModelSession

_HISTORY_MESSAGES: Final = 500


class ModelAgent:
    """A model as an agent. Its work in a pod is a `ModelSession`, created on joining.

    Run its `participant`, in one pod at a time: `mcpp.run(ModelAgent("model", …).participant)`.
    """

    def __init__(
        self,
        name: str,
        provider: Provider,
        *,
        system: str = "",
        limits: ModelLimits = ModelLimits(),  # noqa: B008  (frozen)
        options: Options = Options(),  # noqa: B008  (frozen)
        memory: MemoryStore | None = None,
        samples: bool = False,
    ) -> None:
        """Describe the agent.

        Args:
            name: its name in the pod.
            provider: the model.
            system: instructions for the model.
            limits: limits for answering one question.
            options: how the connection behaves.
            memory: a memory file, for what the agent recalls and remembers.
            samples: whether MCP servers in the pod may use the model (`sampling/createMessage`).
        """
        self._provider = provider
        self._system = system
        self._limits = limits
        self._memory = memory
        self._joined: ModelSession | None = None
        self.participant = Participant(
            name,
            last=_HISTORY_MESSAGES,
            description="A model.",
            answers=("chat", "sampling") if samples else ("chat",),
            options=options,
        )
        self.participant.on_join(self._join)
        self.participant.observe(self._observe)
        self.participant.task(self._answer_questions)
        self.participant.task(self._remind)
        self.participant.method(rpc.TOOLS_CALL)(self._expand)
        if samples:
            self.participant.method(METHOD)(Sampler(provider, limits).sample)

    @property
    def _session(self) -> ModelSession:
        assert self._joined is not None  # the other hooks run after `on_join`
        return self._joined

    def _join(self, pod: Pod) -> None:
        memory = None
        if self._memory is not None:
            memory = AgentMemory(self._memory, pod=pod.name, agent=pod.me)
        self._joined = ModelSession(pod, self._provider, self._system, self._limits, memory)

    async def _observe(self, item: Message | Gap) -> None:
        await self._session.observe(item)

    async def _answer_questions(self, pod: Pod) -> None:
        await self._session.answer_questions()

    async def _remind(self, pod: Pod) -> None:
        await self._session.send_reminders()

    async def _expand(self, params: dict[str, Any], call: ToolCall) -> Any:
        return self._session.expand(params, call.sender)
