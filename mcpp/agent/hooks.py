"""What an agent registers: handlers with their conditions, hooks, middleware."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import wraps
from typing import Literal, TypeAlias

from mcpp.client.message import Message
from mcpp.client.pod import OnGap, Pod
from mcpp.client.proposals import OpenProposal
from mcpp.session.resumption import Gap

__all__ = [
    "Handler",
    "Hooks",
    "Middleware",
    "Observer",
    "OnHistory",
    "OnJoin",
    "OnResume",
    "Order",
    "Subscription",
    "Task",
]

Handler: TypeAlias = Callable[[Message], Awaitable[None]]
Middleware: TypeAlias = Callable[[Message, Handler], Awaitable[None]]
Task: TypeAlias = Callable[[Pod], Awaitable[None]]
OnJoin: TypeAlias = Callable[[Pod], Awaitable[None] | None]
OnHistory: TypeAlias = Callable[[list[Message]], Awaitable[None] | None]
OnResume: TypeAlias = Callable[[list[OpenProposal]], Awaitable[None] | None]
Observer: TypeAlias = Callable[[Message | Gap], Awaitable[None] | None]
Order: TypeAlias = Literal["context", "free"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """A handler, the messages that it handles, and how many of them at once."""

    matches: Callable[[str], bool]
    handler: Handler
    own: bool = False
    to_me: bool = False
    has_type: Callable[[str], bool] | None = None  # of the context's type
    concurrency: int | None = None  # None: one after another, together with other handlers
    order: Order = "context"
    is_policy: bool = False  # decides on proposals, those from before joining too
    claim: Callable[[Message], str] | None = None  # the name under which a group shares a task
    pattern: str = "*"  # the glob that `matches` is made of

    def wants(self, message: Message) -> bool:
        """Return whether this handler matches the message."""
        if not self.matches(message.kind) or not (self.own or message.sender != message.pod.me):
            return False
        if self.to_me and message.pod.me not in (message.to or ()):
            return False
        return self.has_type is None or self.has_type(_context_type(message))


@dataclass(slots=True)
class Hooks:
    """The functions that an agent has registered, in the order of registration."""

    on_join: list[OnJoin] = field(default_factory=list)
    on_history: list[OnHistory] = field(default_factory=list)
    on_resume: list[OnResume] = field(default_factory=list)
    observers: list[Observer] = field(default_factory=list)
    subscriptions: list[Subscription] = field(default_factory=list)
    middleware: list[Middleware] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    on_gap: OnGap | None = None

    def wrapped(self, handler: Handler) -> Handler:
        """Return a handler with all middleware around it, the first registered outermost."""
        for middleware in reversed(self.middleware):
            handler = _around(middleware, handler)
        return handler


def _around(middleware: Middleware, handler: Handler) -> Handler:
    @wraps(handler)
    async def call(message: Message) -> None:
        await middleware(message, handler)

    return call


def _context_type(message: Message) -> str:
    """Return the type of a message's context, which most messages do not repeat (C-02)."""
    context = message.context
    if context is None:
        return ""
    known = message.pod.contexts.get(context.id)
    return (known and known.type) or context.type or ""
