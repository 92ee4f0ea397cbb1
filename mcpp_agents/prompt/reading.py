"""What a prompt is built from, read from the log: envelopes, and the records of past prompts."""

from typing import Final

import msgspec

from mcpp import Envelope, HistoryMessage, McppError, Pod, Refused, filters, kinds
from mcpp.errors import NotInHistoryError
from mcpp.model_prompts import PromptRecord

# More than a model agent keeps. A record is its sender's word, so what it costs us is bounded.
_MAX_ENVELOPES: Final = 25_000
_MAX_BYTES: Final = 268_435_456
# An agent's conclusion stands shortly before its answer.
_CONCLUSIONS: Final = 50


async def read_until(pod: Pod, at: str | None, last: int) -> list[HistoryMessage]:
    """Return the last messages up to the one with this id, or up to now, oldest first.

    Raises NotInHistoryError.
    """
    if at is not None:
        return await _around(pod, at, last - 1)
    return (await pod.history(order="newest", limit=last).all())[::-1]


async def read_one(pod: Pod, id: str) -> HistoryMessage:
    """Return the message with an id. Raises NotInHistoryError."""
    (message,) = await _around(pod, id, 0)
    return message


async def _around(pod: Pod, id: str, before: int) -> list[HistoryMessage]:
    try:
        return await pod.around(id, before=before, after=0)
    except Refused as error:
        if error.code != "invalid_history":
            raise
        raise NotInHistoryError(id) from None


async def find_record(pod: Pod, id: str) -> tuple[PromptRecord, str]:
    """Return the record of the prompt behind an answer, and the participant that made it.

    Raises McppError if neither this envelope nor the conclusion that it follows has one.
    """
    answer = await read_one(pod, id)
    record = _record_in(answer.envelope)
    if record is not None:
        return record, answer.sender
    if answer.kind == kinds.CHAT and answer.correlation_id is not None:
        conclusions = filters.kind(kinds.CONCLUSION) & filters.sender(answer.sender)
        earlier = pod.history(conclusions, before=answer, order="newest", limit=_CONCLUSIONS)
        async for message in earlier:
            record = _record_in(message.envelope)
            if record is not None and record.question == answer.correlation_id:
                return record, answer.sender
    raise McppError(f"{id} has no record of a prompt: name a model agent's answer or conclusion")


async def read_recorded(pod: Pod, record: PromptRecord) -> list[HistoryMessage]:
    """Return the messages from a record's first to its last, oldest first.

    Raises McppError if the log no longer has them.
    """
    try:
        found = [await read_one(pod, record.first)]
    except NotInHistoryError:
        raise McppError("the log no longer has the beginning of this prompt") from None
    if record.at != record.first:
        size = 0
        async for message in pod.history(after=found[0], limit=_MAX_ENVELOPES):
            found.append(message)
            size += len(message.envelope.raw_payload)
            if message.id == record.at:
                return found
            if size > _MAX_BYTES:
                raise McppError("there is too much between the ends of this prompt")
        raise McppError("the log does not have the end of this prompt after its beginning")
    return found


def _record_in(envelope: Envelope) -> PromptRecord | None:
    if envelope.context is None:
        return None
    try:
        return msgspec.convert(envelope.context.metadata.get("prompt"), PromptRecord)
    except msgspec.ValidationError:
        return None
