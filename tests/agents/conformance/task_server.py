"""The MCP server that the suite's scenarios about tasks expect (the extension of 2026-07-28).

Written with the official SDK. It runs on standard input and output, for a bridge.
"""

import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import anyio
import mcp_types as types
from anyio.abc import TaskGroup
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

EXTENSION = "io.modelcontextprotocol/tasks"
MISSING: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
ENDED = ("completed", "failed", "cancelled")
Context = ServerRequestContext[Any]
running: TaskGroup
numbers = itertools.count(1)


@dataclass
class Job:
    """A task: its state, and the questions that it waits for."""

    id: str = field(default_factory=lambda: f"task-{next(numbers)}")
    status: str = "working"
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat())
    outcome: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    answers: dict[str, Any] = field(default_factory=dict)
    answered: anyio.Event = field(default_factory=anyio.Event)
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)

    def describe(self) -> dict[str, Any]:
        facts = {
            "taskId": self.id,
            "status": self.status,
            "createdAt": self.created,
            "lastUpdatedAt": datetime.now(UTC).isoformat(),
            "ttlMs": 60_000,
            "pollIntervalMs": 100,
        }
        return facts | self.outcome | ({"inputRequests": self.asked} if self.asked else {})

    async def ask(self, *fields: str) -> dict[str, Any]:
        for name in fields:
            properties = {name: {"type": "boolean"}}
            schema = {"type": "object", "properties": properties}
            params = {"mode": "form", "message": f"{name}?", "requestedSchema": schema}
            self.asked[f"{name}-1"] = {"method": "elicitation/create", "params": params}
        self.status = "input_required"
        await self.answered.wait()
        self.status = "working"
        return self.answers


jobs: dict[str, Job] = {}


def text(line: str, **more: Any) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": line}], **more}


async def slow_compute(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    await anyio.sleep(float(arguments.get("seconds", 0)))
    return text("computed")


async def failing_job(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    return text("it went wrong", isError=True)


async def protocol_error_job(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    raise MCPError(types.INTERNAL_ERROR, "it broke")


async def confirm_delete(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    return text(f"deleted: {await job.ask('confirm')}")


async def multi_input(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    return text(f"both: {await job.ask('first', 'second')}")


async def test_tool_with_task(job: Job, arguments: dict[str, Any]) -> dict[str, Any]:
    return text(f"for {arguments['user']}")


TOOLS: dict[str, Callable[[Job, dict[str, Any]], Awaitable[dict[str, Any]]]] = {
    tool.__name__: tool
    for tool in (
        slow_compute, failing_job, protocol_error_job, confirm_delete, multi_input,
        test_tool_with_task,
    )
}  # fmt: skip


def knows_tasks(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and EXTENSION in (capabilities.extensions or {})


async def list_tools(context: Context, params: Any) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("greet", *TOOLS)]
    return {"resultType": "complete", "tools": tools, "ttlMs": 0, "cacheScope": "private"}


async def call_tool(context: Context, params: types.CallToolRequestParams) -> dict[str, Any]:
    arguments = dict(params.arguments or {})
    if params.name == "greet":
        return {"resultType": "complete"} | text(f"Hello, {arguments.get('name')}!")
    if params.name not in TOOLS:
        raise MCPError(types.INVALID_PARAMS, f"there is no tool {params.name}")
    if params.name == "test_tool_with_task":
        given = (context.params or {}).get("inputResponses") or {}
        if "user_name" not in given:
            schema = {"type": "object", "properties": {"name": {"type": "string"}}}
            asked = {"mode": "form", "message": "Who?", "requestedSchema": schema}
            request = {"method": "elicitation/create", "params": asked}
            return {"resultType": "input_required", "inputRequests": {"user_name": request}}
        arguments["user"] = given["user_name"]["content"]["name"]
    job = Job()
    if not knows_tasks(context):
        if params.name != "slow_compute":
            reason = "Missing required client capability"
            raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, reason, MISSING)
        return {"resultType": "complete"} | await slow_compute(job, arguments)
    jobs[job.id] = job
    running.start_soon(run, job, params.name, arguments)
    return {"resultType": "task"} | job.describe()


async def run(job: Job, name: str, arguments: dict[str, Any]) -> None:
    with job.scope:
        try:
            job.outcome = {"result": await TOOLS[name](job, arguments)}
            job.status = "completed"
        except MCPError as error:
            job.outcome = {"error": {"code": error.code, "message": error.message}}
            job.status = "failed"
    if job.scope.cancelled_caught:
        job.asked, job.status = {}, "cancelled"


def find(context: Context) -> Job:
    if not knows_tasks(context):
        reason = "Missing required client capability"
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, reason, MISSING)
    job = jobs.get((context.params or {}).get("taskId", ""))
    if job is None:
        raise MCPError(types.INVALID_PARAMS, "Task not found")
    return job


async def get_task(context: Context, params: Any) -> dict[str, Any]:
    return {"resultType": "complete"} | find(context).describe()


async def update_task(context: Context, params: Any) -> dict[str, Any]:
    job = find(context)
    for key, answer in ((context.params or {}).get("inputResponses") or {}).items():
        if job.asked.pop(key, None) is not None:
            job.answers[key] = answer
    if not job.asked:
        job.answered.set()
    return {"resultType": "complete"}


async def cancel_task(context: Context, params: Any) -> dict[str, Any]:
    find(context).scope.cancel()
    return {"resultType": "complete"}


async def main() -> None:
    global running
    server: Server[Any] = Server("task fixture", version="1", instructions="Ask for tasks.")
    server.extensions[EXTENSION] = {}
    server.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    server.add_request_handler("tools/call", types.CallToolRequestParams, call_tool)
    for method, handler in (("get", get_task), ("update", update_task), ("cancel", cancel_task)):
        server.add_request_handler(f"tasks/{method}", types.RequestParams, handler)
    async with anyio.create_task_group() as running, stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
        running.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
