"""The participant in front of an MCP server: passes on what is asked, and what the server tells."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mcpp import Participant, Pod, rpc
from mcpp.tools import ToolCall
from mcpp_agents.bridge.upstream import Upstream

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


def bridge(name: str, upstream: Upstream) -> Participant:
    """Return a participant that answers with what an MCP server answers.

    The answer stands in the request's context, as every answer does. Run it beside
    `upstream.keep`.
    """
    agent = Participant(name)

    @agent.task
    async def tell(pod: Pod) -> None:
        async def pass_on(method: str, params: Mapping[str, Any]) -> None:
            await pod.notify(method, params, wait=False)

        upstream.on_notification = pass_on

    for method in METHODS:
        agent.method(method)(_passing_on(method, upstream))
    return agent


def _passing_on(
    method: str, upstream: Upstream
) -> Callable[[dict[str, Any], ToolCall], Awaitable[dict[str, Any]]]:
    async def pass_on(params: dict[str, Any], call: ToolCall) -> dict[str, Any]:
        meta = params.get("_meta")
        if not isinstance(meta, dict) or "progressToken" not in meta:
            return await upstream.request(method, params)
        # Only the token is replaced: on the server's line it must be that line's own.
        rest = {key: value for key, value in meta.items() if key != "progressToken"}
        return await upstream.request(method, params | {"_meta": rest}, call.progress)

    return pass_on
