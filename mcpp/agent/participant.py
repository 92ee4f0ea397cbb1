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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, TypeAlias, TypeVar, overload

import anyio

from mcpp import kinds
from mcpp.agent.catalog import Catalog
from mcpp.agent.dispatcher import Dispatcher, OnError
from mcpp.agent.hooks import (
    Handler,
    Hooks,
    Middleware,
    Observer,
    OnHistory,
    OnJoin,
    OnResume,
    Order,
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
from mcpp.client.scopes.claims import with_claims
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
from mcpp.protocol.cards import QUESTIONS
from mcpp.protocol.envelope import PARTICIPANT_PATTERN
from mcpp.protocol.globs import compile_glob
from mcpp.transient.summaries import TransientRule
from mcpp.transports.token_sources import TokenSource

Policy: TypeAlias = Callable[[Message], Awaitable[bool | str | None]]
Lifespan: TypeAlias = Callable[[Pod], AbstractAsyncContextManager[Any]]
F = TypeVar("F", bound=Callable[..., Any])

logger = logging.getLogger("mcpp.agent")

# Methods whose answers a card made from the registered functions does not know.
_LISTS: Final = frozenset(("prompts/list", "resources/list", "resources/templates/list"))
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
        description: str = "",
        instructions: str = "",
        answers: Sequence[str] = (),
        lifespan: Lifespan | None = None,
        options: Options = Options(keep_trying=True),  # noqa: B008  (frozen)
    ) -> None:
        """Describe an agent.

        Args:
            name: its name in the pod.
            filter: which messages from others the gateway sends it, as a Filter or as JSON.
            last: how many envelopes of history to replay on joining.
            description: what it is, in a sentence, for people and models; part of its card.
            instructions: how to work with it; part of its card.
            answers: what it can be asked, besides what its handlers and methods show, such as
                `chat`; part of its card.
            lifespan: an `@asynccontextmanager` that gets the pod; what it yields is at
                `message.state`, `call.state` and `pod.state` while the agent serves.
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
        self._lifespan = lifespan
        self._options = options
        self._hooks = Hooks()
        self._catalog = Catalog(name)
        self._about = {"description": description, "instructions": instructions}
        self._answers = tuple(answers)
        self._methods: dict[str, Method] = {}

    # --- messages ---

    def on(
        self,
        kind: str = "*",
        *,
        own: bool = False,
        to_me: bool = False,
        context_type: str | None = None,
        concurrency: int | None = None,
        order: Order = "context",
        claim: Callable[[Message], str] | None = None,
    ) -> Callable[[Handler], Handler]:
        """Call a function for each live message whose kind matches a glob.

        Handlers run one after another, in the log's order. They do not get replayed history. If the
        message's sender sends `notifications/cancelled` for it (`Pod.cancel`), the handler is
        cancelled.

        Args:
            kind: a glob such as `chat` or `mcp/*`.
            own: also call it for the agent's own messages.
            to_me: only for messages that name the agent in `to`.
            context_type: a glob for the type of the message's context, such as `task`.
            concurrency: how many calls may run at once, beside the agent's other handlers.
            order: with concurrency, `context` handles the messages of a context (or of the main
                stream) one after another; `free` keeps no order.
            claim: for a group of participants that share tasks: returns the name to claim for a
                message, such as `lambda message: message.id`. Each message is handled by the
                participant that holds the name (`Pod.claim`), at least once and never twice at a
                time; if the holder leaves, another takes over. `concurrency` tasks run at once, one
                by default. A handler that raises has handled the message.
        """
        if concurrency is not None and concurrency < 1:
            raise ValueError(f"concurrency must be at least 1, not {concurrency}")
        matches = compile_glob(_text(kind, '@agent.on("chat")'))
        has_type = None if context_type is None else compile_glob(context_type)

        def subscribe(handler: Handler) -> Handler:
            self._hooks.subscriptions.append(
                Subscription(
                    matches,
                    handler,
                    own=own,
                    to_me=to_me,
                    has_type=has_type,
                    concurrency=concurrency,
                    order=order,
                    claim=claim,
                    pattern=kind,
                )
            )
            return handler

        return subscribe

    def use(self, middleware: Middleware) -> Middleware:
        """Call a function around every handler, policy and request: `await next(message)` goes on.

        The first registered is the outermost. A request for which `next` is not called is answered
        with an error; `mcpp.protocol.rpc.Failure` gives it a code and a text.
        """
        self._hooks.middleware.append(middleware)
        return middleware

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
        history. The agent's own messages are in the list. Of a history longer than 16 MB, the list
        has the newest part; `observe` gets all of it.
        """
        self._hooks.on_history.append(function)
        return function

    def on_resume(self, function: OnResume) -> OnResume:
        """Call a function after joining with the agent's own proposals from before, if any.

        These are the ones that are open or being worked on, and those that ended after everything
        the agent has said in their context: `await proposal.result()` waits for the outcome or
        returns it. It runs beside the handlers, so it may wait as long as it takes.
        """
        self._hooks.on_resume.append(function)
        return function

    def on_gap(self, function: OnGap) -> OnGap:
        """Call a function where messages were missed, at once and beside the handlers.

        Gaps that occur while it runs are reported together.
        """
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

        It is also asked about the proposals that were open when the agent joined. Up to 256
        decisions run concurrently, since each may take long.
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
        self._hooks.subscriptions.append(Subscription(proposals, apply, is_policy=True))
        return decide

    @property
    def card(self) -> dict[str, Any]:
        """What it announces of itself and what it offers when it joins."""
        card = {name: text for name, text in self._about.items() if text} | self._catalog.card()
        if "tools/list" in self._methods:
            del card["tools"]  # its own method knows better
        if not _LISTS.isdisjoint(self._methods):
            card["more"] = True
        has_chat = any(each.matches(kinds.CHAT) for each in self._hooks.subscriptions)
        served = [name for method, name in QUESTIONS.items() if method in self._methods]
        answers = list(dict.fromkeys([*(["chat"] if has_chat else []), *served, *self._answers]))
        return card | ({"answers": answers} if answers else {})

    # --- running it ---

    @property
    def tool_names(self) -> list[str]:
        """The names of the agent's tools, in the order of their registration."""
        return self._catalog.tool_names

    @property
    def connect_options(self) -> dict[str, Any]:
        """The agent's keyword arguments for `mcpp.connect`, without `name`."""
        filter = self._filter
        if filter is not None and any(each.claim for each in self._hooks.subscriptions):
            filter = with_claims(filter)
        return {
            "filter": filter,
            "last": self._last,
            "own": True,
            "options": self._options,
        }

    def connect(
        self, url: str | Address | None = None, *, token: TokenSource | None = None
    ) -> AbstractAsyncContextManager[Pod]:
        """Connect as this agent: `async with agent.connect() as pod: await agent.serve(pod)`.

        Arguments and exceptions are those of `mcpp.connect`.
        """
        return connect(url, token=token, name=self.name, **self.connect_options)

    async def run(
        self, url: str | Address | None = None, *, token: TokenSource | None = None
    ) -> None:
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
        async with AsyncExitStack() as stack:
            if self._lifespan is not None:
                pod.state = await stack.enter_async_context(self._lifespan(pod))
            await pod.cards.propose(self.card)
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


_LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
_MAX_LISTED_TOOLS: Final = 8


def _joined(agent: Participant, pod: Pod) -> str:
    """Return the line that says where an agent is, and what it offers."""
    names = agent.tool_names  # not those that a method of its own lists
    more = ", …" if len(names) > _MAX_LISTED_TOOLS else ""
    listed = ", ".join(names[:_MAX_LISTED_TOOLS]) + more
    tools = f"; tools: {listed}" if listed else ""
    return f"{agent.name}: joined pod {pod.name!r}{tools}"


def _text(value: object, usage: str) -> str:
    """Check a string argument: without it, `@agent.on` without parentheses would do nothing."""
    if not isinstance(value, str):
        raise TypeError(f"write it as {usage}")
    return value


def run(
    agent: Participant, *, url: str | Address | None = None, token: TokenSource | None = None
) -> None:
    """Run an agent until Ctrl-C or SIGTERM. For scripts; `await agent.run()` raises instead.

    It finds its pod by `url` and `token`, by MCPP_URL and MCPP_TOKEN, or in the nearest `.mcpp/`
    folder of `mcpp up`, where a missing token is created.

    It prints one line to standard error when it has joined. If the program has not configured
    logging, records of the SDK go to standard error, too, with time and level. If there is no pod,
    or the connection ends for good, it prints one line and exits with 2.
    """
    if not logging.getLogger().handlers:
        logging.basicConfig(format=_LOG_FORMAT)
        logging.getLogger("mcpp").setLevel(logging.INFO)

    async def serve() -> None:
        async with agent.connect(url, token=token) as pod:
            sys.stderr.write(f"{_joined(agent, pod)}\n")
            await agent.serve(pod)

    try:
        anyio.run(until_signal, serve)
    except (PodNotFoundError, LocalPodError, ConnectionLostError) as error:
        sys.stderr.write(f"{agent.name}: {error}\n")
        raise SystemExit(2) from error
