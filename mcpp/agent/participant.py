"""An agent: what it does when something is said, and what others may ask of it.

agent = mcpp.Participant("researcher")

@agent.tool
async def search(query: str, limit: int = 10) -> list[str]: ...

@agent.on("chat")
async def answer(message: mcpp.Message) -> None: ...

mcpp.run(agent)
"""

import inspect
import logging
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar, overload

import anyio
from anyio.abc import TaskGroup

from mcpp import kinds
from mcpp.agent.backlog import Backlog
from mcpp.agent.request_server import Method, RequestServer
from mcpp.agent.resources import PromptTemplate, Resource
from mcpp.agent.tools import Tool, ToolCall
from mcpp.client.connection import Options
from mcpp.client.joining import connect
from mcpp.client.local_pod import Address
from mcpp.client.message import Message
from mcpp.client.pod import OnGap, Pod
from mcpp.client.tasks import background, contained, until_signal
from mcpp.errors import ConnectionLostError, DecodeError, LocalPodError, PodNotFoundError, Refused
from mcpp.filters import Filter, as_filter
from mcpp.protocol import rpc
from mcpp.protocol.envelope import PARTICIPANT_PATTERN
from mcpp.protocol.globs import compile_glob
from mcpp.protocol.rpc import Failure
from mcpp.session.session import Gap
from mcpp.transient.summaries import TransientRule

Handler = Callable[[Message], Awaitable[None]]
Task = Callable[[Pod], Awaitable[None]]
Policy = Callable[[Message], Awaitable[bool | str | None]]
Work = tuple[Callable[[Any], Awaitable[None]], Message | Gap]
F = TypeVar("F", bound=Callable[..., Any])

log = logging.getLogger("mcpp")

_is_participant = re.compile(PARTICIPANT_PATTERN).fullmatch

# Proposals before a policy at once. The next ones wait: a flood must not fill us up.
MAX_JUDGED: Final = 256


@dataclass(frozen=True, slots=True)
class _Subscription:
    matches: Callable[[str], bool]
    own: bool
    handler: Handler
    concurrent: bool = False

    def wants(self, message: Message) -> bool:
        """Tell whether the handler is for this message."""
        return self.matches(message.kind) and (self.own or message.sender != message.pod.me)


class Participant:
    """An agent, described once and run against any pod. Owns its handlers and tools, no line."""

    def __init__(
        self,
        name: str,
        *,
        filter: Filter | Mapping[str, Any] | None = None,
        last: int | None = None,
        options: Options = Options(keep_trying=True),  # noqa: B008  (frozen)
    ) -> None:
        if not _is_participant(name):
            raise DecodeError("$.from", f"{name!r} is not 1 to 64 of A-Z a-z 0-9 . _ : @ -")
        self.name = name
        self._filter = as_filter(filter)
        self._last = last
        self._options = options
        self._on_gap: OnGap | None = None
        self._subscriptions: list[_Subscription] = []
        self._tasks: list[Task] = []
        self._tools: dict[str, Tool] = {}
        self._resources: dict[str, Resource] = {}
        self._prompts: dict[str, PromptTemplate] = {}
        self._methods: dict[str, Method] = {
            "ping": self._ping,
            "tools/list": self._list_tools,
            rpc.TOOLS_CALL: self._call_tool,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
        }

    # --- describing it ---

    def on(self, kind: str = "*", *, own: bool = False) -> Callable[[Handler], Handler]:
        """Have a function called for each message whose kind matches a glob, one after another.

        Never for our own messages unless `own`, and never for replayed history.
        """

        matches = compile_glob(_text(kind, '@agent.on("chat")'))

        def subscribe(handler: Handler) -> Handler:
            self._subscriptions.append(_Subscription(matches, own, handler))
            return handler

        return subscribe

    @overload
    def tool(self, function: F, /) -> F: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        transient: TransientRule | str | bool = False,
    ) -> Callable[[F], F]: ...
    def tool(
        self,
        function: F | None = None,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        transient: TransientRule | str | bool = False,
    ) -> F | Callable[[F], F]:
        """Let others call a function; its schema comes from the type hints.

        `transient` marks large results as ones to read once (T-03): `True`, what its records are
        called ("activity"), or a rule of your own.
        """

        def offer(function: F) -> F:
            tool = Tool.from_function(function, name, description, transient=transient)
            self._tools[tool.name] = tool
            return function

        return offer if function is None else offer(function)

    def resource(
        self, uri: str, *, name: str | None = None, mime_type: str = "text/plain"
    ) -> Callable[[F], F]:
        """Let others read what a function without arguments returns: a text or bytes."""
        _text(uri, '@agent.resource("memo://today")')

        def offer(function: F) -> F:
            self._resources[uri] = Resource(uri, name or uri, mime_type, function)
            return function

        return offer

    def prompt(self, function: F) -> F:
        """Let others get the text or messages that a function makes of its arguments."""
        prompt = PromptTemplate.from_function(function)
        self._prompts[prompt.name] = prompt
        return function

    def method(self, name: str) -> Callable[[Method], Method]:
        """Serve a JSON-RPC method of our own, or one of MCP's in another way."""
        _text(name, '@agent.method("completion/complete")')

        def offer(method: Method) -> Method:
            self._methods[name] = method
            return method

        return offer

    def policy(self, decide: Policy) -> Policy:
        """Decide on others' proposals: True fulfils, a text rejects, None leaves it to others."""

        async def judge(message: Message) -> None:
            try:
                rpc.read_proposal(message.envelope)
            except DecodeError as error:
                log.info("a proposal of %s is not put to the policy, %s", message.sender, error)
                return
            verdict = await decide(message)
            if verdict is True:
                try:
                    await message.pod.approve(message)
                except Refused as error:
                    log.warning("a proposal of %s is not fulfilled: %s", message.sender, error)
            elif verdict is not None:
                await message.pod.reject(message, verdict or "rejected")

        # To decide on one proposal may take long: the others need not wait.
        every = compile_glob(f"{kinds.PROPOSAL}:*")
        self._subscriptions.append(_Subscription(every, False, judge, concurrent=True))
        return decide

    def task(self, function: Task) -> Task:
        """Have a function run beside the handlers from the moment we have joined."""
        self._tasks.append(function)
        return function

    def on_gap(self, function: Callable[[Gap], Awaitable[None] | None]) -> OnGap:
        """Have a function called where envelopes were missed, in its turn with the handlers."""
        self._on_gap = function
        return function

    # --- running it ---

    @property
    def joining(self) -> dict[str, Any]:
        """What this agent asks for when it connects, as `connect` takes it."""
        return {
            "filter": self._filter,
            "last": self._last,
            "own": True,
            "options": self._options,
        }

    async def run(self, url: str | Address | None = None, *, token: str | None = None) -> None:
        """Connect and serve until the connection ends for good, or this is cancelled."""
        connecting = connect(url, token=token, name=self.name, **self.joining)
        async with connecting as pod:
            await self.serve(pod)

    async def serve(self, pod: Pod, on_error: Callable[[Exception], None] | None = None) -> None:
        """Serve a pod that was opened with `own=True`."""
        handled, judged = Backlog[Work](), Backlog[Work]()
        tell_gap = pod.tell_gap if self._on_gap is None else self._tell_gap
        async with background() as tasks:
            tasks.start_soon(self._handle, handled, on_error)
            tasks.start_soon(self._judge, judged, tasks, on_error)
            for task in self._tasks:
                tasks.start_soon(self._guard, task, pod, on_error)
            server = RequestServer(self._methods, tasks)
            while True:
                message = await pod.next()
                if isinstance(message, Gap):
                    handled.mark((tell_gap, message))
                    continue
                server.receive(message)
                if message.replayed:
                    continue
                for subscription in self._subscriptions:
                    if not subscription.wants(message):
                        continue
                    backlog = judged if subscription.concurrent else handled
                    was_behind, size_bytes = backlog.behind, len(message.envelope.raw_payload)
                    has_room = backlog.put((subscription.handler, message), size_bytes)
                    if not has_room and not was_behind:
                        log.error("the handlers of %s are too slow: messages are missed", self.name)
                        handled.mark((tell_gap, Gap(lost_log=False)))

    @asynccontextmanager
    async def beside(self, connecting: AbstractAsyncContextManager[Pod]) -> AsyncIterator[Pod]:
        """Serve a pod beside the block. What handlers and tasks raise ends it and comes out."""
        errors: list[Exception] = []

        async with connecting as pod, background() as tasks:

            def fail(error: Exception) -> None:
                errors.append(error)
                # The block may be waiting for what will never come now.
                tasks.cancel_scope.cancel()

            async def serve() -> None:
                try:
                    await self.serve(pod, fail)
                except ConnectionLostError as error:
                    fail(error)

            tasks.start_soon(serve)
            yield pod
        if errors:
            raise errors[0] if len(errors) == 1 else ExceptionGroup("an agent failed", errors)

    async def _tell_gap(self, gap: Gap) -> None:
        assert self._on_gap is not None
        await self._guard(self._on_gap, gap, None)

    async def _handle(
        self,
        backlog: Backlog[Work],
        on_error: Callable[[Exception], None] | None,
    ) -> None:
        while True:
            handler, argument = await backlog.take()
            await self._guard(handler, argument, on_error)

    async def _judge(
        self,
        backlog: Backlog[Work],
        tasks: TaskGroup,
        on_error: Callable[[Exception], None] | None,
    ) -> None:
        places = anyio.Semaphore(MAX_JUDGED)

        async def judge(handler: Callable[[Any], Awaitable[None]], argument: Any) -> None:
            try:
                await self._guard(handler, argument, on_error)
            finally:
                places.release()

        while True:
            await places.acquire()
            tasks.start_soon(judge, *await backlog.take())

    async def _guard(
        self,
        function: Callable[[Any], Awaitable[None] | None],
        argument: Any,
        on_error: Callable[[Exception], None] | None,
    ) -> None:
        """Run something of the agent's. Its failure is its own: the agent goes on."""
        try:
            await contained(self._call(function, argument))
        except ConnectionLostError:
            pass  # told to whoever serves
        except Exception as error:
            log.exception("%s of %s failed", getattr(function, "__name__", "?"), self.name)
            if on_error is not None:
                on_error(error)

    async def _call(self, function: Callable[[Any], Awaitable[None] | None], argument: Any) -> None:
        outcome = function(argument)
        if inspect.isawaitable(outcome):
            await outcome

    # --- what it answers ---

    async def _ping(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {}

    async def _list_tools(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {"tools": [tool.to_json() for tool in self._tools.values()]}

    async def _call_tool(self, params: dict[str, Any], call: ToolCall) -> Any:
        tool = self._tools.get(params.get("name", ""))
        if tool is None:
            raise Failure(rpc.INVALID_PARAMS, f"{self.name} has no tool {params.get('name')!r}")
        arguments = params.get("arguments", {})
        if not isinstance(arguments, dict):
            raise Failure(rpc.INVALID_PARAMS, "$.arguments: must be an object")
        return (await tool.run(arguments, call)).to_json()

    async def _list_resources(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {"resources": [resource.to_json() for resource in self._resources.values()]}

    async def _list_templates(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {"resourceTemplates": []}

    async def _read_resource(self, params: dict[str, Any], call: ToolCall) -> Any:
        uri = params.get("uri")
        resource = self._resources.get(uri) if isinstance(uri, str) else None
        if resource is None:
            raise Failure(rpc.RESOURCE_NOT_FOUND, f"no resource {uri!r}")
        return {"contents": [await resource.read()]}

    async def _list_prompts(self, params: dict[str, Any], call: ToolCall) -> Any:
        return {"prompts": [prompt.to_json() for prompt in self._prompts.values()]}

    async def _get_prompt(self, params: dict[str, Any], call: ToolCall) -> Any:
        prompt = self._prompts.get(params.get("name", ""))
        if prompt is None:
            raise Failure(rpc.INVALID_PARAMS, f"{self.name} has no prompt {params.get('name')!r}")
        return await prompt.get(params.get("arguments", {}))


def _text(value: object, usage: str) -> str:
    """Return what must be a text. A decorator without its brackets would be lost without a word."""
    if not isinstance(value, str):
        raise TypeError(f"write it as {usage}")
    return value


def run(agent: Participant, *, url: str | Address | None = None, token: str | None = None) -> None:
    """Run an agent until Ctrl-C or SIGTERM.

    It finds its pod by `url` and `token`, by MCPP_URL and MCPP_TOKEN, or in `.mcpp/`, where
    `mcpp up` runs one; a token that is missing there is made.

    Where there is no pod, or the gateway ends it for good, it says so in a line and exits with 2:
    it is for scripts. `await agent.run()` raises instead.
    """
    try:
        anyio.run(until_signal, lambda: agent.run(url, token=token))
    except (PodNotFoundError, LocalPodError, ConnectionLostError) as error:
        sys.stderr.write(f"{agent.name}: {error}\n")
        raise SystemExit(2) from error
