"""The participant in front of an MCP server: passes on what is asked, and what the server tells."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mcpp import DecodeError, Participant, Pod, Refused, ToolCall, new_envelope
from mcpp.errors import TooLargeError
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.bridge.upstream import UNAVAILABLE, Upstream

# MCP's requests from a client to a server, but for those that open or tend the line itself.
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

log = logging.getLogger("mcpp")


def bridge(name: str, upstream: Upstream) -> Participant:
    """Return a participant that answers with what an MCP server answers.

    The answer stands in the request's context, as every answer does. Run it beside
    `upstream.keep`.
    """
    agent = Participant(name)

    @agent.task
    async def tell(pod: Pod) -> None:
        while True:
            method, params = await upstream.news()
            try:
                await pod.notify(method, params)
            except (Refused, TooLargeError) as error:
                log.warning("%s was not told: %s", method, error)

    for method in METHODS:
        agent.method(method)(_passing_on(method, upstream))
    return agent


def _passing_on(
    method: str, upstream: Upstream
) -> Callable[[dict[str, Any], ToolCall], Awaitable[dict[str, Any]]]:
    async def pass_on(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        meta = params.get("_meta")
        if not isinstance(meta, dict) or "progressToken" not in meta:
            return _sayable(await upstream.request(method, params), call, upstream.name)
        # Only the token is replaced: on the server's line it must be that line's own.
        rest = {key: value for key, value in meta.items() if key != "progressToken"}
        result = await upstream.request(method, params | {"_meta": rest}, call.progress)
        return _sayable(result, call, upstream.name)

    return pass_on


def _sayable(result: dict[str, Any], call: ToolCall, name: str) -> dict[str, Any]:
    """Return a result that an envelope holds; another one is the server's failure, not ours."""
    try:
        new_envelope(call.envelope.kind, rpc.response(call.envelope.id, result), sender=call.pod.me)
    except DecodeError as error:
        reason = f"{name} answered with what no envelope holds: {error}"
        raise Failure(UNAVAILABLE, reason) from None
    return result
