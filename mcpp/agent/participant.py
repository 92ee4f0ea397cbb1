"""An agent: handlers for messages, and tools, resources and prompts for other participants.

agent = mcpp.Participant("researcher")

@agent.tool
async def search(query: str, limit: int = 10) -> list[str]: ...

@agent.on("chat")
async def answer(message: mcpp.Message) -> None: ...

mcpp.run(agent)
"""

import logging
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar, overload

import anyio

from mcpp import kinds
from mcpp.agent.catalog import Catalog
from mcpp.agent.dispatcher import (
    Dispatcher,
    Handler,
    Hooks,
    Observer,
    OnError,
    OnHistory,
    OnJoin,
    Subscription,
    Task,
)
from mcpp.agent.request_server import Method
from mcpp.agent.resources import PromptTemplate, Resource
from mcpp.agent.tools import Tool
from mcpp.client.connection import Options
from mcpp.client.joining import connect
from mcpp.client.local_pod import Address
from mcpp.client.message import Message
from mcpp.client.pod import OnGap, Pod
from mcpp.client.tasks import background, until_signal
from mcpp.errors import (
    ConnectionLostError,
    DecodeError,
    EncodeError,
    LocalPodError,
    PodNotFoundError,
    Refused,
)
from mcpp.filters import Filter, as_filter
from mcpp.protocol import rpc
from mcpp.protocol.envelope import PARTICIPANT_PATTERN
from mcpp.protocol.globs import compile_glob
from mcpp.transient.summaries import TransientRule

Policy: TypeAlias = Callable[[Message], Awaitable[bool | str | None]]
F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("mcpp.agent")

_is_participant = re.compile(PARTICIPANT_PATTERN).fullmatch


class Participant:
    """An agent, described once and run against any pod.

    Owns its hooks, handlers and tools, but no connection. The life of an agent in a pod is: join
    (`on_join`), replayed history (`observe`, `on_history`), then live messages (`observe`, requests
    to its tools and methods, `on`).
    """

    def __init__(
        self,
        name: str,
        *,
        filter: Filter | Mapping[str, Any] | None = None,
        last: int | None = None,
        options: Options = Options(keep_trying=True),  # noqa: B008  (frozen)
    ) -> None:
        """Describe an agent.

        Args:
            name: its name in the pod.
            filter: which messages from others the gateway sends it, as a Filter or as JSON.
            last: how many envelopes of history to replay on joining.
            options: how the connection behaves. By default it waits for an unreachable gateway.

        Raises EncodeError for a name that the protocol does not allow.
        """
        if not _is_participant(name):
            raise EncodeError(
                "$.from", f"{name!r} is not 1 to 64 characters from A-Z a-z 0-9 . _ : @ -"
            )
        self.name = name
        self._filter = as_filter(filter)
        self._last = last
        self._options = options
        self._hooks = Hooks()
        self._catalog = Catalog(name)
        self._methods: dict[str, Method] = {}

    # --- messages ---

    def on(self, kind: str = "*", *, own: bool = False) -> Callable[[Handler], Handler]:
        """Call a function for each live message whose kind matches a glob.

        Handlers run one after another, in the log's order. They do not get replayed history.

        Args:
            kind: a glob such as `chat` or `mcp/*`.
            own: also call it for the agent's own messages.
        """

        matches = compile_glob(_text(kind, '@agent.on("chat")'))

        def subscribe(handler: Handler) -> Handler:
            self._hooks.subscriptions.append(Subscription(matches, own, handler))
            return handler

        return subscribe

    def observe(self, function: Observer) -> Observer:
        """Call a function for everything in the log, to keep state up to date with it.

        It gets every message, replayed history and the agent's own messages included, and a Gap
        where messages were missed. It runs before any handler, tool or method gets the message, and
        the next message is not read until it returns: keep it short.
        """
        self._hooks.observers.append(function)
        return function

    def on_join(self, function: OnJoin) -> OnJoin:
        """Call a function with the pod after joining, before any message is dispatched.

        An exception in it ends the agent.
        """
        self._hooks.on_join.append(function)
        return function

    def on_history(self, function: OnHistory) -> OnHistory:
        """Call a function once with the replayed messages (see `last=`), the oldest first.

        It runs before any live message is dispatched, and with an empty list if there is no
        history. The agent's own messages are in the list.
        """
        self._hooks.on_history.append(function)
        return function

    def on_gap(self, function: OnGap) -> OnGap:
        """Call a function where messages were missed, in order with the handlers."""
        self._hooks.on_gap = function
        return function

    def task(self, function: Task) -> Task:
        """Run a function concurrently with the handlers, from joining until the agent stops."""
        self._hooks.tasks.append(function)
        return function

    # --- what it offers ---

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
        """Offer a function, sync or async, as a tool. Its schema comes from the type hints.

        Args:
            name: defaults to the function's name.
            description: defaults to its docstring.
            transient: mark large results as ones to read once (T-03): `True`, a name for the
                records ("activity"), or a rule.

        Raises TypeError for a name or a parameter that cannot be offered.
        """

        def register(function: F) -> F:
            self._catalog.add_tool(
                Tool.from_function(function, name, description, transient=transient)
            )
            return function

        return register if function is None else register(function)

    def resource(
        self, uri: str, *, name: str | None = None, mime_type: str = "text/plain"
    ) -> Callable[[F], F]:
        """Offer the string or bytes that a function returns as a resource.

        Args:
            uri: the address. With parameters it is a template: `memo://{day}` matches up to the
                next slash, `file://{+path}` across slashes; the function takes them by name.
            name: defaults to the address.
            mime_type: of what the function returns.

        Raises TypeError if the function does not take the template's parameters.
        """
        _text(uri, '@agent.resource("memo://today")')

        def register(function: F) -> F:
            self._catalog.add_resource(Resource(uri, name or uri, mime_type, function))
            return function

        return register

    def prompt(self, function: F) -> F:
        """Offer a function as a prompt: it returns a string or a list of MCP messages."""
        prompt = PromptTemplate.from_function(function)
        self._catalog.add_prompt(prompt)
        return function

    def method(self, name: str) -> Callable[[Method], Method]:
        """Serve a JSON-RPC method, or replace one of MCP's such as `tools/list`.

        The function gets the params and the `ToolCall`; it returns the result or raises
        `mcpp.protocol.rpc.Failure`.
        """
        _text(name, '@agent.method("completion/complete")')

        def register(method: Method) -> Method:
            self._methods[name] = method
            return method

        return register

    def policy(self, decide: Policy) -> Policy:
        """Decide on proposals: True fulfils, a string rejects with that reason, None abstains.

        Up to 256 decisions run concurrently, since each may take long.
        """

        async def apply(message: Message) -> None:
            try:
                rpc.read_proposal(message.envelope)
            except DecodeError as error:
                logger.info("ignored an invalid proposal from %s: %s", message.sender, error)
                return
            decision = await decide(message)
            if decision is True:
                try:
                    await message.pod.approve(message)
                except Refused as error:
                    logger.warning("cannot fulfil a proposal from %s: %s", message.sender, error)
            elif decision is not None:
                await message.pod.reject(message, decision or "rejected")

        proposals = compile_glob(f"{kinds.PROPOSAL}:*")
        self._hooks.subscriptions.append(Subscription(proposals, False, apply, concurrent=True))
        return decide

    # --- running it ---

    @property
    def connect_options(self) -> dict[str, Any]:
        """The agent's keyword arguments for `mcpp.connect`, without `name`."""
        return {
            "filter": self._filter,
            "last": self._last,
            "own": True,
            "options": self._options,
        }

    def connect(
        self, url: str | Address | None = None, *, token: str | None = None
    ) -> AbstractAsyncContextManager[Pod]:
        """Connect as this agent: `async with agent.connect() as pod: await agent.serve(pod)`.

        Arguments and exceptions are those of `mcpp.connect`.
        """
        return connect(url, token=token, name=self.name, **self.connect_options)

    async def run(self, url: str | Address | None = None, *, token: str | None = None) -> None:
        """Connect and serve until the connection ends for good or this is cancelled.

        Raises what `connect` raises, and ConnectionLostError at the end.
        """
        async with self.connect(url, token=token) as pod:
            await self.serve(pod)

    async def serve(self, pod: Pod, on_error: OnError | None = None) -> None:
        """Serve a pod that was opened with `connect` above, or with `own=True`.

        Args:
            pod: the connected pod.
            on_error: called with what handlers, observers and tasks raise, after it is logged.

        Raises ConnectionLostError when the connection has ended for good.
        """
        methods = self._catalog.methods() | self._methods
        await Dispatcher(self.name, pod, self._hooks, on_error).run(methods)

    @asynccontextmanager
    async def run_in_background(
        self, connecting: AbstractAsyncContextManager[Pod]
    ) -> AsyncIterator[Pod]:
        """Serve a pod while the block runs, for tests.

        The first exception in a handler, observer or task cancels the block and is raised from it.
        """
        errors: list[Exception] = []

        async with connecting as pod, background() as tasks:

            def fail(error: Exception) -> None:
                errors.append(error)
                # The block may be waiting for a message that will not come now.
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


def _text(value: object, usage: str) -> str:
    """Check a string argument: without it, `@agent.on` without parentheses would do nothing."""
    if not isinstance(value, str):
        raise TypeError(f"write it as {usage}")
    return value


def run(agent: Participant, *, url: str | Address | None = None, token: str | None = None) -> None:
    """Run an agent until Ctrl-C or SIGTERM. For scripts; `await agent.run()` raises instead.

    It finds its pod by `url` and `token`, by MCPP_URL and MCPP_TOKEN, or in the nearest `.mcpp/`
    folder of `mcpp up`, where a missing token is created.

    If there is no pod, or the connection ends for good, it prints one line and exits with 2.
    """
    try:
        anyio.run(until_signal, lambda: agent.run(url, token=token))
    except (PodNotFoundError, LocalPodError, ConnectionLostError) as error:
        sys.stderr.write(f"{agent.name}: {error}\n")
        raise SystemExit(2) from error
