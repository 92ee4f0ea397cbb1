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
from mcpp_agents.bridge.subscriptions import SUBSCRIBE, UNSUBSCRIBE
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
    "tasks/get",
    "tasks/list",
    "tasks/result",
    "tasks/update",
    "tasks/cancel",
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
        async with background() as tasks:
            await tasks.start(upstream.keep_running)
            await agent.run(address)

    # A server that does not end is killed with its children after a few seconds. A second Ctrl-C
    # would leave them running.
    await until_signal(work, ends_by_itself=True)


def bridge(name: str, upstream: Upstream, questions: Questions | None = None) -> Participant:
    """Return a participant that forwards requests to an MCP server.

    Run `upstream.keep_running` alongside. Both share `questions`.
    """
    agent = Participant(name)
    asking = Questions() if questions is None else questions

    @agent.on_join
    async def join(pod: Pod) -> None:
        asking.pod = pod

    @agent.task
    async def forward_notifications(pod: Pod) -> None:
        while True:
            method, params = await upstream.next_notification()
            try:
                await pod.notify(method, params)
            except (Refused, TooLargeError) as error:
                logger.warning("%s was not forwarded: %s", method, error)

    for method in (SUBSCRIBE, UNSUBSCRIBE):
        agent.method(method)(_subscriber(method, upstream))
    for method in METHODS:
        agent.method(method)(_forwarder(method, upstream, asking))
    return agent


def _forwarder(
    method: str, upstream: Upstream, questions: Questions
) -> Callable[[dict[str, Any], ToolCall], Awaitable[dict[str, Any]]]:
    async def forward(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        given, report = _without_token(params, call)

        async def request(more: Mapping[str, Any] = {}) -> dict[str, Any]:
            return await upstream.request(method, {**given, **more}, report)

        with questions.during(call):
            result = await request()
            if rpc.needs_input(result) and not can_answer(params):
                result = await questions.complete(result, call, request)
        return _checked(result, call, upstream.name)

    return forward


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
