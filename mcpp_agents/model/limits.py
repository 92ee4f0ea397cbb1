"""Limits on the work of a model agent."""

import msgspec

from mcpp.model_prompts import PROMPT_TOKENS, Collapse
from mcpp_agents.toolbox import GRACE_SECONDS


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for answering one question."""

    turns: int = 12
    tokens: int = 200_000  # for all turns together, as the API counts them
    reply_tokens: int = 4096
    prompt_tokens: int = PROMPT_TOKENS  # beyond that, older messages are reduced
    collapse: Collapse = "cache"  # when consumed results collapse (T-28)
    call_seconds: float = 120.0
    approval_seconds: float = 300.0
    grace_seconds: float = GRACE_SECONDS  # for newcomers' tools and lost connections
    memory_seconds: float = 5.0  # for recalling, and for remembering before the reply
    remind_seconds: float = 15.0  # interval of progress messages while a question waits
