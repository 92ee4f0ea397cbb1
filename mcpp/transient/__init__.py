"""Transient tool results: marked by the server, collapsed by the client once they have been used.

Server side: `transient`, `consumed`, `with_context_hints` or `@tool(transient=…)` mark a result, a
`Workflow` declares which tool consumes the results of which, and a `Scratch` keeps data out of the
prompt altogether; `mcpp.transient.decorators` has decorators for servers of the package `mcp`.
Client side: a `TransientTracker` follows a pod's log, a `Conversation` the messages of any MCP
client. See `spec/transient.md` (T-01 and following).
"""

from mcpp.transient.calls import LoggedCall, LoggedCalls, read_result
from mcpp.transient.collapsing.cache_policy import CachePolicy
from mcpp.transient.collapsing.conversation import Conversation
from mcpp.transient.collapsing.expansion import EXPAND, expand_tool
from mcpp.transient.collapsing.lifecycle import Badge, Matching, TransientResult
from mcpp.transient.marks import (
    Hint,
    Mark,
    consumed,
    cut,
    read_hints,
    read_mark,
    transient,
    with_context_hints,
)
from mcpp.transient.scratch import Scratch
from mcpp.transient.summaries import TransientRule, mark_by_rule, summarize
from mcpp.transient.tracker import TransientTracker
from mcpp.transient.workflow import Workflow, WorkflowStep

__all__ = [
    "EXPAND",
    "Badge",
    "CachePolicy",
    "Conversation",
    "Hint",
    "LoggedCall",
    "LoggedCalls",
    "Mark",
    "Matching",
    "Scratch",
    "TransientResult",
    "TransientRule",
    "TransientTracker",
    "Workflow",
    "WorkflowStep",
    "consumed",
    "cut",
    "expand_tool",
    "mark_by_rule",
    "read_hints",
    "read_mark",
    "read_result",
    "summarize",
    "transient",
    "with_context_hints",
]
