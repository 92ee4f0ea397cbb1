"""The bridge's participant: forwards requests to an MCP server and its notifications to the pod."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mcpp import EncodeError, Participant, Pod, Refused, ToolCall, new_envelope
from mcpp.client.local_pod import Address
from mcpp.client.tasks import background, until_signal
from mcpp.errors import TooLargeError
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.bridge.upstream import UNAVAILABLE, Open, Upstream
from mcpp_agents.cli.joining import announce_join

# MCP's requests from client to server, except those about the connection itself.
METHODS: Final = (
    "tools/list",
    rpc.TOOLS_CALL,
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
)

logger = logging.getLogger("mcpp.bridge")


async def run(name: str, open: Open, address: Address) -> None:
    """Run the server and its participant until a signal arrives."""
    upstream = Upstream(open, name=f"{name}'s MCP server")
    agent = bridge(name, upstream)
    announce_join(agent, "bridge")

    async def work() -> None:
        async with background() as tasks:
            await tasks.start(upstream.keep_running)
            await agent.run(address)

    # A server that does not end is killed with its children after a few seconds. A second Ctrl-C
    # would leave them running.
    await until_signal(work, ends_by_itself=True)


def bridge(name: str, upstream: Upstream) -> Participant:
    """Return a participant that forwards requests to an MCP server.

    Run `upstream.keep_running` alongside.
    """
    agent = Participant(name)

    @agent.task
    async def forward_notifications(pod: Pod) -> None:
        while True:
            method, params = await upstream.next_notification()
            try:
                await pod.notify(method, params)
            except (Refused, TooLargeError) as error:
                logger.warning("%s was not forwarded: %s", method, error)

    for method in METHODS:
        agent.method(method)(_forwarder(method, upstream))
    return agent


def _forwarder(
    method: str, upstream: Upstream
) -> Callable[[dict[str, Any], ToolCall], Awaitable[dict[str, Any]]]:
    async def forward(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        meta = params.get("_meta")
        if not isinstance(meta, dict) or "progressToken" not in meta:
            return _checked(await upstream.request(method, params), call, upstream.name)
        # Replace only the token: progress tokens are scoped to a connection.
        rest = {key: value for key, value in meta.items() if key != "progressToken"}
        result = await upstream.request(method, params | {"_meta": rest}, call.progress)
        return _checked(result, call, upstream.name)

    return forward


def _checked(result: dict[str, Any], call: ToolCall, name: str) -> dict[str, Any]:
    """Return the result if it fits into an envelope.

    Raises Failure, which names the server, if it does not.
    """
    try:
        new_envelope(call.envelope.kind, rpc.response(call.envelope.id, result), sender=call.pod.me)
    except EncodeError as error:
        reason = f"{name} returned an answer that does not fit into an envelope: {error}"
        raise Failure(UNAVAILABLE, reason) from None
    return result
