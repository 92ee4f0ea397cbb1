"""Builds model prompts from a pod's log, within a token budget.
builder = PromptBuilder(viewer="analyst", token_budget=100_000)
prompt = builder.build(envelopes)
client.messages.create(model=…, tools=…, **prompt.anthropic())
"""

from mcpp.prompts.blocks import CallBlock, ImageBlock, PromptMessage, ResultBlock, TextBlock
from mcpp.prompts.budget import BudgetError
from mcpp.prompts.builder import PromptBuilder
from mcpp.prompts.draft import Changed, LeftOut
from mcpp.prompts.folding import KEPT_NEWEST, ContextSummary, digest_of, is_summarized
from mcpp.prompts.names import call_id, tool_name
from mcpp.prompts.prompt import Prompt, Report
from mcpp.prompts.quoting import clean_text
from mcpp.prompts.turns import BEGINNING
from mcpp.transient.collapsing.cache_policy import CachePolicy
from mcpp.transient.collapsing.expansion import EXPAND, expand_tool

__all__ = [
    "BEGINNING",
    "EXPAND",
    "KEPT_NEWEST",
    "BudgetError",
    "CachePolicy",
    "CallBlock",
    "Changed",
    "ContextSummary",
    "ImageBlock",
    "LeftOut",
    "Prompt",
    "PromptBuilder",
    "PromptMessage",
    "Report",
    "ResultBlock",
    "TextBlock",
    "call_id",
    "clean_text",
    "digest_of",
    "expand_tool",
    "is_summarized",
    "tool_name",
]
