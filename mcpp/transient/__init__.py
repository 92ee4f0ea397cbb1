"""Results that a model reads once: marked by the server, collapsed by the client.

A tool's author marks (`transient`, `consumed`, `with_context_hints`, or `@tool(transient=…)`), a
`Workflow` says which tool uses up which, a `Scratch` keeps data out of sight altogether. On the
other side a `Tracker` follows the log. The rules are T-01 and on, in `spec/transient.md`.
"""

from mcpp.transient.calls import LoggedCall, LoggedCalls, read_result
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
from mcpp.transient.tracker import Badge, Tracked, Tracker
from mcpp.transient.workflow import Workflow, WorkflowStep

__all__ = [
    "Badge",
    "Hint",
    "LoggedCall",
    "LoggedCalls",
    "Mark",
    "Scratch",
    "Tracked",
    "Tracker",
    "TransientRule",
    "Workflow",
    "WorkflowStep",
    "consumed",
    "cut",
    "mark_by_rule",
    "read_hints",
    "read_mark",
    "read_result",
    "summarize",
    "transient",
    "with_context_hints",
]
