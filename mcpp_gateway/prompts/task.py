"""What the gateway gives to the process that computes a prompt."""

import msgspec


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Whose prompt to compute, from which envelopes (the oldest first)."""

    viewer: str
    texts: list[bytes]
    token_budget: int | None = None  # None: that of a model agent
