"""Tasks of a server: calls of tools that it works on after it has answered.

MCP has them in two forms. In 2025-11-25 the caller asks for a task (`task` in a call); the answer
has the member `task`, and the result comes by `tasks/result`. By the extension of 2026-07-28 the
server decides, if the caller's capabilities name the extension; the answer has the `resultType`
"task", and the result comes with `tasks/get`.

A caller that knows a form gets the task itself, and it is that participant's alone. For any other
caller the bridge waits until the task is done, and the call returns its result.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import mcp_types as types
from mcp import Client
from mcp.client.extension import ClientExtension, NotificationBinding
from mcp.shared.dispatcher import ProgressFnT
from pydantic import BaseModel, ConfigDict

from mcpp import McppError, Pod, ToolCall, filters
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.bridge.questions import Questions
from mcpp_agents.cli.display import one_line

EXTENSION: Final = "io.modelcontextprotocol/tasks"
LIST: Final = "tasks/list"
METHODS: Final = ("tasks/get", LIST, "tasks/result", "tasks/update", "tasks/cancel")
NOTIFICATIONS: Final = ("notifications/tasks/status", "notifications/tasks")
# What the bridge asks for where a tool needs a task and the caller did not ask for one.
PARAMS: Final = {"ttl": 3_600_000}

NOBODY: Final = ""
_MAX_TASKS: Final = 10_000  # whose owners are known
_MAX_LISTED: Final = 500
_MAX_READ: Final = 20  # answers that contain the id of a task
_ANSWERS: Final = "mcp/response:tools/call:*"
_MAX_ID_CHARS: Final = 512
_SECONDS: Final = (0.05, 1.0, 10.0)  # between two looks at a task: at least, by default, at most
_CANCEL_SECONDS: Final = 2.0
_MAX_STATUS_CHARS: Final = 1_000
_ENDED: Final = ("completed", "failed", "cancelled")

Request = Callable[[str, Mapping[str, Any]], Awaitable[dict[str, Any]]]

logger = logging.getLogger("mcpp.bridge")


@dataclass(frozen=True, slots=True)
class ServerTask:
    """A task as a server describes it, in either form."""

    id: str
    status: str
    message: str | None
    seconds: float
    is_newer: bool
    raw: Mapping[str, Any]

    @classmethod
    def read(cls, value: Any) -> "ServerTask | None":
        """Return the task that an answer creates or describes, or None if it is none."""
        if not isinstance(value, dict):
            return None
        nested = value.get("task") if not value.get("content") else None
        raw = nested if isinstance(nested, dict) else value
        id, status = raw.get("taskId"), raw.get("status")
        if not isinstance(id, str) or not 0 < len(id) <= _MAX_ID_CHARS or status is None:
            return None
        message = raw.get("statusMessage")
        interval = raw.get("pollIntervalMs", raw.get("pollInterval"))
        least, usual, most = _SECONDS
        wanted = interval / 1000 if isinstance(interval, int | float) else usual
        shown = message[:_MAX_STATUS_CHARS] if isinstance(message, str) else None
        seconds = min(max(wanted, least), most)
        return cls(id, str(status), shown, seconds, "resultType" in value, raw)


def created_task(result: Mapping[str, Any]) -> ServerTask | None:
    """Return the task that a server has created instead of answering a call."""
    is_task = result.get("resultType") == "task" or isinstance(result.get("task"), dict)
    return ServerTask.read(result) if is_task else None


def knows_tasks(params: Mapping[str, Any], task: ServerTask) -> bool:
    """Return whether the sender of a call can handle the task that it led to."""
    if not task.is_newer:
        return isinstance(params.get("task"), dict)
    meta = params.get("_meta")
    capabilities = meta.get(types.CLIENT_CAPABILITIES_META_KEY) if isinstance(meta, dict) else None
    extensions = capabilities.get("extensions") if isinstance(capabilities, dict) else None
    return isinstance(extensions, dict) and EXTENSION in extensions


def has_tasks(client: Client) -> bool:
    """Return whether a server has tasks, in the form of its revision."""
    offered = client.server_capabilities
    return offered.tasks is not None or EXTENSION in (offered.extensions or {})


@dataclass(slots=True)
class Tasks:
    """The tasks of a server. Owns the names of the participants that they belong to.

    The log tells whose a task is that an earlier bridge has seen created.
    """

    _owners: dict[str, str] = field(default_factory=dict)

    def add(self, id: str, owner: str) -> None:
        """Note whose task it is; NOBODY for one that no participant may ask for."""
        self._owners.pop(id, None)
        self._owners[id] = owner
        if len(self._owners) > _MAX_TASKS:
            del self._owners[next(iter(self._owners))]

    async def owner(self, pod: Pod, id: object) -> str:
        """Return the participant that a task belongs to, or NOBODY. Raises Failure."""
        if not isinstance(id, str) or not 0 < len(id) <= _MAX_ID_CHARS:
            return NOBODY
        if id not in self._owners:
            found = await _logged_owner(pod, id)
            if id not in self._owners:  # it may have been created meanwhile
                self.add(id, found)
        return self._owners[id]

    async def check(self, method: str, params: Mapping[str, Any], call: ToolCall) -> None:
        """Raise Failure for a request about another participant's task, or about none."""
        if method == LIST:
            return
        id = params.get("taskId")
        if not isinstance(id, str) or len(id) > _MAX_ID_CHARS:
            raise Failure(rpc.INVALID_PARAMS, "$.taskId: is not the id of a task")
        if await self.owner(call.pod, id) != call.sender:
            raise Failure(rpc.INVALID_PARAMS, "Task not found")

    async def only_own(self, result: Mapping[str, Any], call: ToolCall) -> dict[str, Any]:
        """Return a list of tasks without those of others. Raises Failure."""
        listed = result.get("tasks")
        own = [
            task
            for task in (listed[:_MAX_LISTED] if isinstance(listed, list) else ())
            if isinstance(task, dict)
            and await self.owner(call.pod, task.get("taskId")) == call.sender
        ]
        return {**result, "tasks": own}


async def _logged_owner(pod: Pod, id: str) -> str:
    """Return whose task it is by the latest answer of this bridge that created it.

    Raises Failure if the log cannot be read.
    """
    answers = filters.sender(pod.me) & filters.kind(_ANSWERS)
    try:
        async for message in pod.history(answers, text=f'"{id}"', order="newest", limit=_MAX_READ):
            payload = message.payload
            result = payload.get("result") if isinstance(payload, dict) else None
            task = created_task(result) if isinstance(result, dict) else None
            if task is not None and task.id == id and message.to:
                return message.to[0]
    except McppError as error:
        logger.info("it is not known whose task %s is: %s", one_line(id, 80), error)
        raise Failure(rpc.INTERNAL_ERROR, "whose task this is cannot be found now") from None
    return NOBODY


@dataclass(frozen=True, slots=True)
class TaskWait:
    """Waits for a task in place of a caller that does not know tasks."""

    call: ToolCall
    request: Request
    questions: Questions
    report: ProgressFnT | None

    async def result(self, task: ServerTask) -> dict[str, Any]:
        """Return the result of a task once it is done. Cancelling this cancels the task.

        Raises Failure with the error of the task.
        """
        try:
            return await self._poll(task)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_CANCEL_SECONDS, shield=True):
                await self._cancel(task)
            raise

    async def _poll(self, task: ServerTask) -> dict[str, Any]:
        is_newer, answered, looks = task.is_newer, set[str](), 0
        while task.status not in _ENDED:
            if task.status == "input_required":
                if not is_newer:
                    break  # the questions come while the result is asked for
                await self._answer(task, answered)
            await anyio.sleep(task.seconds)
            found = ServerTask.read(await self.request("tasks/get", {"taskId": task.id}))
            if found is None or found.id != task.id:
                raise Failure(rpc.INTERNAL_ERROR, "the server's answer describes no task")
            if self.report is not None and found.message not in (None, task.message):
                looks += 1
                await self.report(looks, None, found.message)
            task = found
        if not is_newer:
            return await self.request("tasks/result", {"taskId": task.id})
        return _outcome(task)

    async def _answer(self, task: ServerTask, answered: set[str]) -> None:
        """Have the pod answer the questions that a task waits for, each of them once."""
        requests = task.raw.get("inputRequests")
        new = {
            key: request
            for key, request in (requests if isinstance(requests, dict) else {}).items()
            if key not in answered
        }
        if new:
            answered.update(new)
            answers = await self.questions.answer_each(new, self.call)
            await self.request("tasks/update", {"taskId": task.id, "inputResponses": answers})

    async def _cancel(self, task: ServerTask) -> None:
        try:
            await self.request("tasks/cancel", {"taskId": task.id})
        except Failure as failure:
            logger.info("a task was not cancelled: %s", failure.message)


def _outcome(task: ServerTask) -> dict[str, Any]:
    """Return the result of a task that has ended, by the extension. Raises Failure."""
    result, error = task.raw.get("result"), task.raw.get("error")
    if task.status == "completed" and isinstance(result, dict):
        return result
    if isinstance(error, dict) and isinstance(error.get("code"), int):
        raise Failure(error["code"], str(error.get("message", "")), error.get("data"))
    raise Failure(rpc.INTERNAL_ERROR, task.message or f"the task has {task.status}")


class TaskRequest(types.Request[dict[str, Any], str]):
    """A request about a task, whose id is also in a header (MCP 2026-07-28)."""

    name_param = "taskId"


class _AnyParams(BaseModel):
    model_config = ConfigDict(extra="allow")


OnStatus = Callable[[str, str, dict[str, Any]], None]


class TaskExtension(ClientExtension):
    """Has the SDK's client declare that it knows tasks, and report their states."""

    identifier = EXTENSION

    def __init__(self, on_status: OnStatus) -> None:
        self._on_status = on_status

    def notifications(self) -> Sequence[NotificationBinding[Any]]:
        """Return the notifications to receive."""
        return [
            NotificationBinding(
                method=method, params_type=_AnyParams, handler=self._receiver(method)
            )
            for method in NOTIFICATIONS
        ]

    def _receiver(self, method: str) -> Callable[[_AnyParams], Awaitable[None]]:
        async def receive(params: _AnyParams) -> None:
            given = params.model_dump(mode="json")
            if isinstance(id := given.get("taskId"), str):
                self._on_status(method, id, given)

        return receive
