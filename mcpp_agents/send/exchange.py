"""Sending one envelope and waiting for its answer."""

import sys
from collections.abc import Iterable
from typing import Any, Final

import anyio

from mcpp import AbsentError, Attachment, Context, Envelope, Kind, NoAnswerError, Pod, kinds
from mcpp.client import factory
from mcpp.protocol import rpc
from mcpp_agents.cli.display import progress_of

# For the cancellation notice, which is sent even when this task is being cancelled.
_CANCEL_SECONDS: Final = 1.0
# The news that a participant has joined may take this long.
_PRESENCE_SECONDS: Final = 0.1


async def send(
    pod: Pod,
    kind: str,
    payload: Any,
    *,
    to: list[str] | None = None,
    context: Context | None = None,
    correlation_id: str | None = None,
    attachments: Iterable[Attachment] = (),
    is_awaited: bool = False,
) -> Envelope:
    """Send an envelope and return it; a request's payload is completed.

    Raises AbsentError for a request, a proposal or, if an answer is awaited, another envelope whose
    only addressee is not in the pod.
    """
    needs_all = Kind.parse(kind).family in (kinds.REQUEST, kinds.PROPOSAL)
    if needs_all or (is_awaited and to is not None and len(to) == 1):
        for participant in to or ():
            await pod.wait_for_presence(participant, _PRESENCE_SECONDS)  # P-50
    id = factory.new_id()
    payload = complete_request(Kind.parse(kind), payload, id)
    return await pod.send(
        kind,
        payload,
        to=to,
        correlation_id=correlation_id,
        context=context,
        attachments=attachments,
        id=id,
    )


async def wait_for_answer(pod: Pod, sent: Envelope, seconds: float) -> Envelope:
    """Return the first answer to an envelope that we sent.

    Cancels a request that is not answered in time, or whose addressee leaves. Raises NoAnswerError
    and AbsentError.
    """
    answer: Envelope | None = None
    is_request = Kind.parse(sent.kind).family == kinds.REQUEST
    # Without a single addressee, any participant may answer.
    owner = sent.to[0] if sent.to and (is_request or len(sent.to) == 1) else pod.me
    try:
        with anyio.move_on_after(seconds), pod.while_present(owner) as presence:
            answer = await _first_answer(pod, sent)
    finally:
        if answer is None and is_request:
            with anyio.move_on_after(_CANCEL_SECONDS, shield=True):  # P-18
                await pod.notify(
                    rpc.CANCELLED,
                    {"requestId": sent.id, "reason": "the sender stopped waiting"},
                    to=sent.to,
                    correlation_id=sent.id,
                    context=sent.context,
                )
    if answer is None and presence.cancelled_caught:
        raise AbsentError(owner, sent.kind, "it left before it answered", list(pod.participants))
    if answer is None:
        raise NoAnswerError(", ".join(sent.to or ["the pod"]), sent.kind, seconds)
    return answer


def complete_request(kind: Kind, payload: Any, id: str) -> Any:
    """Return the payload; for a request, add members that follow from its kind and id."""
    if kind.family != kinds.REQUEST or not isinstance(payload, dict):
        return payload
    params = payload.get("params", {})
    if kind.name is not None and isinstance(params, dict):
        params = {"name": kind.name} | params
    return rpc.request(id, kind.method or "", {}) | payload | {"params": params}


async def _first_answer(pod: Pod, sent: Envelope) -> Envelope:
    is_request = Kind.parse(sent.kind).family == kinds.REQUEST
    async for message in pod:
        if message.correlation_id != sent.id:
            continue
        if (progress := progress_of(message.envelope)) is not None:
            if sys.stderr.isatty():
                sys.stderr.write(f"{message.sender}: {progress}\n")
        # P-14: only the addressee's response answers a request.
        elif not is_request or (
            message.sender in (sent.to or ()) and message.kind.startswith(kinds.RESPONSE)
        ):
            return message.envelope
    raise AssertionError("iterating over a pod ends with an error")
