"""The bridge's participant: forwards requests to an MCP server and its notifications to the pod."""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from mcp.shared.dispatcher import ProgressFnT

from mcpp import EncodeError, Participant, Pod, Refused, ToolCall, new_envelope
from mcpp.client.local_pod import Address
from mcpp.client.tasks import background, until_signal
from mcpp.errors import TooLargeError
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.bridge.openers import Open
from mcpp_agents.bridge.questions import Questions, can_answer
from mcpp_agents.bridge.server_questions import ServerQuestions
from mcpp_agents.bridge.state import tasks
from mcpp_agents.bridge.state.card import ServerCard
from mcpp_agents.bridge.state.notifications import LIST_CHANGES
from mcpp_agents.bridge.state.subscriptions import SUBSCRIBE, UNSUBSCRIBE
from mcpp_agents.bridge.upstream import UNAVAILABLE, Upstream
from mcpp_agents.cli.joining import announce_join

# MCP's requests from client to server, except those about the connection itself.
METHODS: Final = (
    "tools/list",
    rpc.TOOLS_CALL,
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    *tasks.METHODS,
)

# A longer message of progress is cut.
_MAX_PROGRESS_CHARS: Final = 1000

logger = logging.getLogger("mcpp.bridge")


async def run(
    name: str, open: Open, address: Address, answerers: Sequence[str] | None = None
) -> None:
    """Run the server and its participant until a signal arrives.

    Besides the caller, the server's questions are put to the `answerers`, or to any participant.
    """
    questions = Questions(answerers)
    upstream = Upstream(open, name=f"{name}'s MCP server", questions=ServerQuestions(questions))
    agent = bridge(name, upstream, questions)
    announce_join(agent, "bridge")

    async def work() -> None:
        async with background() as running:
            await running.start(upstream.keep_running)
            await agent.read_card()
            await agent.run(address)

    # A server that does not end is killed with its children after a few seconds. A second Ctrl-C
    # would leave them running.
    await until_signal(work, ends_by_itself=True)


def bridge(name: str, upstream: Upstream, questions: Questions | None = None) -> "Bridge":
    """Return a participant that forwards requests to an MCP server.

    Run `upstream.keep_running` alongside. Both share `questions`.
    """
    return Bridge(name, upstream, Questions() if questions is None else questions)


class Bridge(Participant):
    """An MCP server in a pod. Owns what is known of the server's offers and tasks."""

    def __init__(self, name: str, upstream: Upstream, questions: Questions) -> None:
        super().__init__(name)
        self._upstream = upstream
        self._questions = questions
        self._server_card = ServerCard()
        self._tasks = tasks.Tasks()
        self.on_join(self._join)
        self.task(self._forward_notifications)
        for method in (SUBSCRIBE, UNSUBSCRIBE):
            self.method(method)(_subscriber(method, upstream))
        for method in METHODS:
            self.method(method)(self._forwarder(method))

    @property
    def card(self) -> dict[str, Any]:
        """What the server offers, as far as it is known."""
        return self._server_card.to_json(self._upstream.client)

    async def read_card(self, change: str | None = None) -> None:
        """Ask the server what it offers; after a notification of a change, what has changed."""
        await self._server_card.read(self._upstream.request, change)

    def _join(self, pod: Pod) -> None:
        self._questions.pod = pod

    async def _forward_notifications(self, pod: Pod) -> None:
        if "tools" not in self.card:
            await self.read_card()
            await pod.cards.propose(self.card)
        while True:
            method, params = await self._upstream.notifications.next()
            owner = None
            if method in tasks.NOTIFICATIONS:
                owner = await self._notified(pod, params)
                if owner is None:
                    continue
            try:
                await pod.notify(method, params, to=owner)
                if method in LIST_CHANGES:
                    await self.read_card(method)
                    await pod.cards.propose(self.card)
            except (Refused, TooLargeError) as error:
                logger.warning("%s was not forwarded: %s", method, error)

    async def _notified(self, pod: Pod, params: Mapping[str, Any]) -> str | None:
        """Return who hears of a task's state; None if the bridge itself waits for the task."""
        try:
            owner = await self._tasks.owner(pod, params.get("taskId"))
        except Failure:
            return None
        return owner or None

    def _forwarder(
        self, method: str
    ) -> Callable[[dict[str, Any], ToolCall], Awaitable[dict[str, Any]]]:
        async def forward(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
            if method in tasks.METHODS:
                await self._tasks.check(method, params, call)
            with self._questions.during(call):
                result = await self._answer(method, params, call)
            if method == tasks.LIST:
                result = await self._tasks.only_own(result, call)
            return _checked(result, call, self._upstream.name)

        return forward

    async def _answer(self, method: str, params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        given, report = _without_token(params, call)
        is_call = method == rpc.TOOLS_CALL
        if is_call and await self._needs_task(given):
            given = given | {"task": tasks.PARAMS}

        async def request(more: Mapping[str, Any] = {}) -> dict[str, Any]:
            return await self._upstream.request(method, {**given, **more}, report)

        result = await request()
        if rpc.needs_input(result) and not can_answer(params):
            result = await self._questions.complete(result, call, request)
        task = tasks.created_task(result) if is_call else None
        if task is None:
            return result
        if tasks.knows_tasks(params, task):
            self._tasks.add(task.id, call.sender)
            return result
        self._tasks.add(task.id, tasks.NOBODY)
        waiting = tasks.TaskWait(call, self._upstream.request, self._questions, report)
        return await waiting.result(task)

    async def _needs_task(self, params: Mapping[str, Any]) -> bool:
        """Return whether a call must ask for a task and does not."""
        client = self._upstream.client
        if "task" in params or client is None or client.server_capabilities.tasks is None:
            return False
        name = params.get("name")
        if not self._server_card.has_tool(name):
            await self.read_card(LIST_CHANGES[0])  # servers add tools after they have started
        return self._server_card.requires_task(name)


def _subscriber(
    method: str, upstream: Upstream
) -> Callable[[dict[str, Any], ToolCall], Awaitable[dict[str, Any]]]:
    async def subscribe(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        return await upstream.change_subscription(method, params, call.sender)

    return subscribe


def _without_token(
    params: dict[str, Any], call: ToolCall
) -> tuple[dict[str, Any], ProgressFnT | None]:
    """Return params without the caller's progress token, which is of another connection."""
    meta = params.get("_meta")
    if not isinstance(meta, dict) or "progressToken" not in meta:
        return params, None
    rest = {key: value for key, value in meta.items() if key != "progressToken"}

    async def report(
        progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        shown = None if message is None else message[:_MAX_PROGRESS_CHARS]
        await call.progress(progress, total, shown)

    return params | {"_meta": rest}, report


def _checked(result: dict[str, Any], call: ToolCall, name: str) -> dict[str, Any]:
    """Return the result if it fits into an envelope.

    Raises Failure, which names the server, if it does not.
    """
    try:
        new_envelope(
            call.envelope.kind,
            rpc.response(rpc.request_id(call.envelope), result),
            sender=call.pod.me,
        )
    except EncodeError as error:
        reason = f"{name} returned an answer that does not fit into an envelope: {error}"
        raise Failure(UNAVAILABLE, reason) from None
    return result
