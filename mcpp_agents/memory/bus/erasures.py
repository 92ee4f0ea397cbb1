"""Erasures from a pod's log that happened before a participant joined (H-14)."""

import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

from mcpp import McppError, Pod, kinds
from mcpp.payloads import Erased

logger = logging.getLogger("mcpp.memory")


class EarlierErasure(NamedTuple):
    """What was erased, and the Unix time at which it was."""

    erased: Erased
    at: float


async def past_erasures(pod: Pod) -> AsyncIterator[EarlierErasure]:
    """Yield the erasures that the pod's history knows; an error is logged and ends it."""
    try:
        async for message in pod.history({"kind": kinds.ERASED}):
            yield EarlierErasure(message.envelope.payload_as(Erased), message.time)
    except McppError as error:
        logger.warning("cannot read which entries of the log were erased: %s", error)
