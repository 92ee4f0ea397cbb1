"""What a context's creator says about it: its title, its steps, how it ended, and its tokens.

Rules C-19 to C-22.

The gateway relays these and keeps none of them. Readers count only what the creator says, as with
the conclusion itself (C-17).
"""

from typing import Any, Final, Literal, TypeAlias, get_args

import msgspec

from mcpp import kinds
from mcpp.payloads import Outcome, outcome_in
from mcpp.protocol.envelope import Context, Envelope

__all__ = [
    "MAX_TITLE_LENGTH",
    "ContextState",
    "Usage",
    "ends_context",
    "outcome_of",
    "step_of",
    "steps_of",
    "title_of",
    "usage_of",
]

ContextState: TypeAlias = Literal["open", "concluded", "failed", "cancelled", "expired"]

MAX_TITLE_LENGTH: Final = 200
_MAX_STEPS: Final = 64
_MAX_STEP_LENGTH: Final = 100
_MAX_MODEL_LENGTH: Final = 100
# More than any API counts in a year; sums of these stay exact in JavaScript.
_MAX_TOKENS: Final = 2**40


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that a model's API has counted for a context; zeros if it does not count (C-22)."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input, read from the API's cache
    model: str = ""

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum of two, with the model of the later one."""
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            model=other.model or self.model,
        )


class _Step(msgspec.Struct):
    step: str = ""


class _Accounts(msgspec.Struct):
    usage: Usage | None = None


class _Ending(msgspec.Struct):
    outcome: Any = None


# Without the payload's dictionary: of most envelopes it is not needed.
_read_ending: Final = msgspec.json.Decoder(_Ending).decode
_read_usage: Final = msgspec.json.Decoder(_Accounts).decode
_read_step: Final = msgspec.json.Decoder(_Step).decode


def title_of(context: Context) -> str | None:
    """Return the title in a context's metadata, on one line; None if there is none (C-20)."""
    title = _member(context, "title")
    if not isinstance(title, str):
        return None
    line = " ".join(title.split())
    if not line:
        return None
    return line if len(line) <= MAX_TITLE_LENGTH else line[: MAX_TITLE_LENGTH - 1] + "…"


def ends_context(envelope: Envelope) -> bool:
    """Return whether an envelope of a context's creator ends it: a conclusion, erased or not."""
    if envelope.kind != kinds.TOMBSTONE:
        return envelope.kind == kinds.CONCLUSION
    try:
        return _read_ending(envelope.raw_payload).outcome in get_args(Outcome)
    except (msgspec.MsgspecError, RecursionError):
        return False


def outcome_of(conclusion: Envelope) -> Outcome:
    """Return how a context ended, from its creator's conclusion (C-19)."""
    try:
        return outcome_in({"outcome": _read_ending(conclusion.raw_payload).outcome})
    except (msgspec.MsgspecError, RecursionError):
        return "concluded"


def usage_of(conclusion: Envelope) -> Usage | None:
    """Return the tokens that a context's creator reports with its conclusion (C-22).

    None if there are none, or numbers that no API can have counted.
    """
    if conclusion.kind != kinds.CONCLUSION or b'"usage"' not in bytes(conclusion.raw_payload):
        return None
    try:
        usage = _read_usage(conclusion.raw_payload).usage
    except (msgspec.MsgspecError, RecursionError):
        return None
    if usage is None:
        return None
    numbers = (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
    if not all(0 <= number <= _MAX_TOKENS for number in numbers):
        return None
    model = usage.model
    if len(model) > _MAX_MODEL_LENGTH:
        model = model[: _MAX_MODEL_LENGTH - 1] + "…"
    return msgspec.structs.replace(usage, model=model)


def steps_of(context: Context) -> tuple[str, ...]:
    """Return the steps that a context's metadata announce, each once (C-21)."""
    steps = _member(context, "steps")
    if not isinstance(steps, list) or len(steps) > _MAX_STEPS:
        return ()
    if not all(isinstance(step, str) and 0 < len(step) <= _MAX_STEP_LENGTH for step in steps):
        return ()
    return tuple(dict.fromkeys(steps))


def step_of(envelope: Envelope) -> str | None:
    """Return the step that a reflection begins, None for any other envelope (C-21)."""
    if envelope.kind != kinds.REFLECTION:
        return None
    try:
        return _read_step(envelope.raw_payload).step or None
    except msgspec.MsgspecError:
        return None


def _member(context: Context, name: str) -> Any:
    """Return a member of the metadata. Most have none of these: looking for the word is fast."""
    raw = context.raw_metadata
    if not isinstance(raw, msgspec.Raw) or name.encode() not in bytes(raw):
        return None
    return context.metadata.get(name)
