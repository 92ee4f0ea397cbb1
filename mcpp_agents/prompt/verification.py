"""Checking a past answer: whether its prompts, built again from the log, match its record."""

import sys
from typing import Final

from mcpp import McppError, Pod
from mcpp.model_prompts import is_system_of, recompute, recorded_pictures
from mcpp_agents.pictures import fetch_pictures
from mcpp_agents.prompt.reading import find_record, read_one, read_recorded

_REASONS: Final = (
    "the record is false, another version made it, or you may not read all that the agent has read"
)

_PICTURE_SECONDS: Final = 60.0


async def verify(pod: Pod, id: str, system: str) -> int:
    """Print whether the prompts behind an answer can be built again; return the exit code.

    Raises McppError if the log does not have what they were built from.
    """
    record, viewer = await find_record(pod, id)
    if not is_system_of(record, system):
        which = "others" if system else "some: pass them with --system FILE"
        raise McppError(f"{viewer} had instructions for its model, {which}")
    if record.summaries:
        raise McppError(
            f"{viewer}'s model was shown summaries of open contexts from its memory, which the log "
            "does not hold: its prompt cannot be built again"
        )
    log = await read_recorded(pod, record)
    question = None
    if record.question is not None:
        question = (await read_one(pod, record.question)).envelope
    envelopes = [message.envelope for message in log]
    chosen = recorded_pictures(record, viewer, envelopes, question=question)
    pictures = await fetch_pictures(pod, chosen, seconds=_PICTURE_SECONDS)
    found = list(
        recompute(record, viewer, envelopes, question=question, system=system, pictures=pictures)
    )
    for one in found:
        outcome = "matches" if one.matches else "differs"
        size = f"{one.prompt.tokens:,} tokens"
        sys.stdout.write(f"{outcome}  {viewer} at {one.at}, {size}, {one.prompt.digest}\n")
    if all(one.matches for one in found):
        return 0
    erased = sum(message.erased for message in log)
    unread = len(chosen) - len(pictures)
    reason = f"{erased} of its messages were erased" if erased else _REASONS
    if unread and not erased:
        reason = f"{unread} of its pictures cannot be fetched"
    sys.stderr.write(f"mcpp prompt: a prompt differs from its record: {reason}\n")
    return 1
