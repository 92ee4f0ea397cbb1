"""What a context's creator says about it: its title, its steps, and how it ended (C-19 to C-21).

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
    "ends_context",
    "outcome_of",
    "step_of",
    "steps_of",
    "title_of",
]

ContextState: TypeAlias = Literal["open", "concluded", "failed", "cancelled", "expired"]

MAX_TITLE_LENGTH: Final = 200
_MAX_STEPS: Final = 64
_MAX_STEP_LENGTH: Final = 100


class _Step(msgspec.Struct):
    step: str = ""


class _Ending(msgspec.Struct):
    outcome: Any = None


# Without the payload's dictionary: of most envelopes it is not needed.
_read_ending: Final = msgspec.json.Decoder(_Ending).decode
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
