"""MCPP: the message bus on which AI agents, tools and people work together.

import mcpp

agent = mcpp.Participant("parrot")

@agent.on("chat")
async def repeat(message: mcpp.Message) -> None:
    await message.reply(message.text)

mcpp.run(agent)

The public API is the names in `mcpp.__all__` and in `__all__` of these modules; everything else is
internal and may change in any release:

- mcpp.buffers: queues bounded by bytes
- mcpp.errors: the exceptions, as one tree below McppError
- mcpp.filters: which messages a participant receives
- mcpp.history: open proposals and contexts, from envelopes of the past
- mcpp.live: texts of others while they are written
- mcpp.kinds: the message kinds that the protocol defines
- mcpp.outcomes: what a context's creator says about it: title, steps, outcome, tokens
- mcpp.payloads: the payloads of those kinds
- mcpp.scripts: scripts that put no spaces between words
- mcpp.times: times as people write them, and as envelopes have them
- mcpp.tokens: estimating and counting tokens
- mcpp.prompts: model prompts from a pod's log
- mcpp.model_prompts: what a participant's model is shown, and proof of what it was shown
- mcpp.transient: tool results that a model reads once
- mcpp.testing: an in-memory pod for tests, and recorded logs
- mcpp.testing.plugin: the pytest fixtures `pod` and `recording`
- mcpp.testing.strategies: Hypothesis strategies
- mcpp.agent.hooks: types of handlers, middleware and hooks
- mcpp.agent.shares: places that requesters share fairly
- mcpp.agent.tools: tools made from functions
- mcpp.client.factory: new ids, timestamps, contexts and envelopes
- mcpp.client.local_pod: the pod of `mcpp up` in this folder, and addresses of pods
- mcpp.client.tasks: background tasks, and work that ends on a signal
- mcpp.protocol.capabilities: what a participant may send
- mcpp.protocol.cards: what participants say about themselves
- mcpp.protocol.contexts: type, parent and ancestors of contexts, from a stream of envelopes
- mcpp.protocol.rpc: JSON-RPC requests, responses and error codes in envelopes
- mcpp.tracing: spans of OpenTelemetry, off by default
- mcpp.tracing.spans: the spans of an agent's own work
- mcpp.transports.token_sources: tokens from a function, a file or a command
- mcpp.cli.extras: imports of optional packages in commands
- mcpp.cli.shorthand: filters and searches as people type them
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mcpp import filters
    from mcpp.agent.participant import Participant, run
    from mcpp.agent.tools import ToolCall
    from mcpp.client.connection import Options
    from mcpp.client.factory import new_context, new_envelope
    from mcpp.client.history import ContextHistory, HistoryIterator, HistoryMessage
    from mcpp.client.joining import connect
    from mcpp.client.message import Message
    from mcpp.client.pod import Pod
    from mcpp.client.proposals import OpenProposal
    from mcpp.client.scopes.claims import ClaimScope
    from mcpp.client.scopes.context_scope import ContextScope
    from mcpp.client.scopes.templates import ContextTemplate
    from mcpp.client.sender import Progress
    from mcpp.conversation.text_stream import TextStream
    from mcpp.errors import (
        AbsentError,
        CallError,
        ClaimHeldError,
        ClaimLostError,
        ConnectionLostError,
        DecodeError,
        EncodeError,
        FilterError,
        McppError,
        NoAnswerError,
        Refused,
        RemoteError,
        ToolError,
    )
    from mcpp.kinds import Kind
    from mcpp.protocol.cards import Card, OfferedItem
    from mcpp.protocol.codec import decode, encode
    from mcpp.protocol.envelope import PROTOCOL, Attachment, Context, Envelope
    from mcpp.protocol.rpc import ToolResult
    from mcpp.protocol.tree import ContextNode, ContextTree
    from mcpp.session.resumption import Gap

__all__ = [
    "PROTOCOL",
    "AbsentError",
    "Attachment",
    "CallError",
    "Card",
    "ClaimHeldError",
    "ClaimLostError",
    "ClaimScope",
    "ConnectionLostError",
    "Context",
    "ContextHistory",
    "ContextNode",
    "ContextScope",
    "ContextTemplate",
    "ContextTree",
    "DecodeError",
    "EncodeError",
    "Envelope",
    "FilterError",
    "Gap",
    "HistoryIterator",
    "HistoryMessage",
    "Kind",
    "McppError",
    "Message",
    "NoAnswerError",
    "OfferedItem",
    "OpenProposal",
    "Options",
    "Participant",
    "Pod",
    "Progress",
    "Refused",
    "RemoteError",
    "TextStream",
    "ToolCall",
    "ToolError",
    "ToolResult",
    "connect",
    "decode",
    "encode",
    "filters",
    "new_context",
    "new_envelope",
    "run",
]

__version__ = "0.1.0"

# The module of each public name. A name is imported when it is first used, which keeps the command
# line fast; a test compares this table, the imports above and `__all__`.
_HOMES: Final = {
    "mcpp.agent.participant": ("Participant", "run"),
    "mcpp.agent.tools": ("ToolCall",),
    "mcpp.client.connection": ("Options",),
    "mcpp.client.factory": ("new_context", "new_envelope"),
    "mcpp.client.history": ("ContextHistory", "HistoryMessage", "HistoryIterator"),
    "mcpp.client.joining": ("connect",),
    "mcpp.client.message": ("Message",),
    "mcpp.client.pod": ("Pod",),
    "mcpp.client.proposals": ("OpenProposal",),
    "mcpp.client.scopes.claims": ("ClaimScope",),
    "mcpp.client.scopes.context_scope": ("ContextScope",),
    "mcpp.client.scopes.templates": ("ContextTemplate",),
    "mcpp.client.sender": ("Progress",),
    "mcpp.conversation.text_stream": ("TextStream",),
    "mcpp.errors": (
        "AbsentError",
        "CallError",
        "ClaimHeldError",
        "ClaimLostError",
        "ConnectionLostError",
        "DecodeError",
        "EncodeError",
        "FilterError",
        "McppError",
        "NoAnswerError",
        "Refused",
        "RemoteError",
        "ToolError",
    ),
    "mcpp.filters": ("filters",),
    "mcpp.kinds": ("Kind",),
    "mcpp.protocol.cards": ("Card", "OfferedItem"),
    "mcpp.protocol.codec": ("decode", "encode"),
    "mcpp.protocol.envelope": ("PROTOCOL", "Attachment", "Context", "Envelope"),
    "mcpp.protocol.rpc": ("ToolResult",),
    "mcpp.protocol.tree": ("ContextNode", "ContextTree"),
    "mcpp.session.resumption": ("Gap",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'mcpp' has no attribute {name!r}")
    module = import_module(home)
    value = module if home == f"mcpp.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
