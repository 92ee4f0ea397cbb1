"""Tasks of participants for MCP clients: calls that go on after they are answered.

A client's id of a task is `PARTICIPANT/ID`: it says where the task is, so that it outlives the
client's connection and this process. A single participant's tasks have their own ids. The two forms
of tasks, of MCP 2025-11-25 and of the extension of 2026-07-28, are the participant's: each client
is given the form of its revision, or the result.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp.server.session import ServerSession
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types.methods import serialize_server_result
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

from mcpp import Kind, McppError, Message, Pod, kinds
from mcpp.protocol import rpc
from mcpp_agents.mcp_server.client_calls import Context
from mcpp_agents.mcp_server.results import with_listed_names

EXTENSION: Final = "io.modelcontextprotocol/tasks"
OLDER: Final = "2025-11-25"  # the revision that has tasks in itself
CAPABILITY: Final = types.ServerTasksCapability(
    list=types.TasksListCapability(),
    cancel=types.TasksCancelCapability(),
    requests=types.ServerTasksRequestsCapability(
        tools=types.TasksToolsCapability(call=types.TasksCallCapability())
    ),
)
STATUS: Final = str(Kind(kinds.NOTIFICATION, "notifications/tasks/status"))

_METHODS: Final = {
    "older": ("tasks/get", "tasks/list", "tasks/result", "tasks/cancel"),
    "newer": ("tasks/get", "tasks/update", "tasks/cancel"),
}
_RELATED: Final = "io.modelcontextprotocol/related-task"
_MISSING: Final[Mapping[str, Any]] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
_MAX_TASKS: Final = 1000  # whose clients are told of their states
_MAX_LISTED: Final = 500
_LIST_SECONDS: Final = 5.0

Call = Callable[[Context, str], Awaitable[dict[str, Any]]]
Forward = Callable[..., Awaitable[dict[str, Any]]]


class _TaskParams(types.RequestParams):
    """The params of any request about tasks; the raw ones are forwarded."""

    task_id: str | None = None


class ClientTasks:
    """The tasks of a pod for clients. Owns the list of which session follows which task.

    With `only`, a single participant's tasks under their own ids. `call` calls a tool by its listed
    name; `forward` makes a client's request to a participant.
    """

    def __init__(self, pod: Pod, only: str | None, call: Call, forward: Forward) -> None:
        self._pod = pod
        self._only = only
        self._call = call
        self._forward = forward
        self._sessions: dict[str, ServerSession] = {}

    @property
    def handlers(self) -> Mapping[str, tuple[Any, Callable[[Context, Any], Awaitable[Any]]]]:
        """The handlers of all methods about tasks."""
        methods = {method for form in _METHODS.values() for method in form}
        return {method: (_TaskParams, self._handler(method)) for method in methods}

    async def __call__(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Serve a call that asks for a task, which the SDK does not. (It calls its middleware.)"""
        params = ctx.params or {}
        is_older = ctx.protocol_version == OLDER and isinstance(params.get("task"), dict)
        name = params.get("name")
        if ctx.method != rpc.TOOLS_CALL or not is_older or not isinstance(name, str):
            return await call_next(ctx)
        answer = await self._call(ctx, name)
        return answer if "task" in answer else serialize_server_result(ctx.method, OLDER, answer)

    def created(self, context: Context, participant: str, answer: Any) -> dict[str, Any] | None:
        """Return an answer to a call that is a task in the client's form, or None for others."""
        if not isinstance(answer, dict):
            return None
        if context.protocol_version == OLDER and "content" not in answer:
            try:
                types.CreateTaskResult.model_validate(answer, by_name=False)
            except ValidationError:
                return None
            task = self._renamed(answer["task"], participant)
            self._follow(context, task["taskId"])
            return {**answer, "task": task}
        is_task = answer.get("resultType") == "task" and isinstance(answer.get("taskId"), str)
        return self._renamed(answer, participant) if is_task and _knows(context) else None

    async def observe(self, message: Message) -> None:
        """Tell the client whose task it is of a task's state."""
        params = message.payload.get("params") if isinstance(message.payload, dict) else None
        if not isinstance(params, dict) or message.to != (self._pod.me,) or message.replayed:
            return
        renamed = self._renamed(params, message.sender)
        known = self._sessions.get(str(renamed.get("taskId")))
        if known is None:
            return
        try:
            given = types.TaskStatusNotificationParams.model_validate(renamed, by_name=False)
        except ValidationError:
            return
        with suppress(MCPError, anyio.ClosedResourceError, anyio.BrokenResourceError):
            await known.send_notification(
                types.TaskStatusNotification(params=given)  # type: ignore[arg-type]
            )

    def _handler(self, method: str) -> Callable[[Context, Any], Awaitable[Any]]:
        async def handle(context: Context, params: Any) -> Any:
            is_newer = context.protocol_version in MODERN_PROTOCOL_VERSIONS
            served = _METHODS["newer" if is_newer else "older"]
            if method not in served or not (is_newer or context.protocol_version == OLDER):
                raise MCPError(rpc.METHOD_NOT_FOUND, "Method not found", method)
            if is_newer and not _knows(context):
                reason = "Missing required client capability"
                raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, reason, _MISSING)
            if method == "tasks/list":
                return await self._list(context)
            participant, id = await self._find(context)
            answer = await self._forward(context, participant, method, taskId=id)
            result = self._renamed(answer, participant)
            return {"resultType": "complete", **result} if is_newer else result

        return handle

    async def _find(self, context: Context) -> tuple[str, str]:
        """Return the participant and its id of the task that a request is about."""
        id = (context.params or {}).get("taskId")
        if not isinstance(id, str):
            raise MCPError(rpc.INVALID_PARAMS, "$.taskId: must be a string")
        _check_header(context, id)
        if self._only is not None:
            return self._only, id
        participant, slash, own = id.partition("/")
        if not slash or not await self._has_tasks(participant):
            raise MCPError(rpc.INVALID_PARAMS, "Task not found")
        return participant, own

    async def _has_tasks(self, participant: str) -> bool:
        """Return whether a participant says that it has tasks; others may never answer."""
        try:
            card = await self._pod.cards.get(participant)
        except McppError:
            return False
        return card is not None and "tasks" in card.answers

    async def _list(self, context: Context) -> dict[str, Any]:
        """Return the tasks of all participants that say that they have some."""
        names = [self._only] if self._only is not None else list(self._pod.participants)
        found: list[dict[str, Any]] = []
        for name in names:
            if self._only is None and not await self._has_tasks(name):
                continue
            try:
                page = await self._pod.request(name, "tasks/list", {}, timeout=_LIST_SECONDS)
            except McppError:
                continue
            tasks = page.get("tasks") if isinstance(page, dict) else None
            for task in tasks if isinstance(tasks, list) else ():
                if isinstance(task, dict):
                    found.append(self._renamed(task, name))
        return {"tasks": found[:_MAX_LISTED]}

    def _renamed(self, value: Mapping[str, Any], participant: str) -> dict[str, Any]:
        """Return what describes a task, or is its result, with the ids and names for clients."""
        if self._only is not None:
            return dict(value)
        renamed = with_listed_names(dict(value), participant)
        if isinstance(id := value.get("taskId"), str):
            renamed["taskId"] = f"{participant}/{id}"
        if isinstance(result := value.get("result"), dict):
            renamed["result"] = with_listed_names(result, participant)
        meta = renamed.get("_meta")
        related = meta.get(_RELATED) if isinstance(meta, dict) else None
        if isinstance(related, dict) and isinstance(related.get("taskId"), str):
            related = related | {"taskId": f"{participant}/{related['taskId']}"}
            renamed["_meta"] = {**renamed["_meta"], _RELATED: related}
        return renamed

    def _follow(self, context: Context, id: str) -> None:
        self._sessions[id] = context.session
        if len(self._sessions) > _MAX_TASKS:
            del self._sessions[next(iter(self._sessions))]


def _check_header(context: Context, id: str) -> None:
    """Raise MCPError if a request over HTTP does not name its task in a header, as it must."""
    headers = getattr(context.request, "headers", None)
    if headers is None or context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return
    if decode_header_value(headers.get(MCP_NAME_HEADER)) != id:
        reason = f"{MCP_NAME_HEADER} header does not match the request body's taskId"
        raise MCPError(types.HEADER_MISMATCH, reason)


def _knows(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and EXTENSION in (capabilities.extensions or {})
