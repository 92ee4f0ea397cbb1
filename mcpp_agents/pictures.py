"""Fetches the attached pictures that a model's prompt shows, within bounds of time and size."""

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import anyio

from mcpp import Attachment, McppError, Pod

# A picture that takes longer is named in the prompt, and not shown.
FETCH_SECONDS: Final = 10.0
_AT_ONCE: Final = 4

logger = logging.getLogger("mcpp.model")


async def fetch_pictures(
    pod: Pod,
    chosen: Iterable[Attachment],
    known: Mapping[str, bytes] | None = None,
    *,
    seconds: float = FETCH_SECONDS,
) -> dict[str, bytes]:
    """Return the content of pictures by hash, without those that cannot be fetched in time.

    `known` are contents that need not be fetched.
    """
    contents = {each.hash: (known or {}).get(each.hash) for each in chosen}
    missing = [each for each in chosen if contents[each.hash] is None]
    limiter = anyio.CapacityLimiter(_AT_ONCE)

    async def fetch(picture: Attachment) -> None:
        async with limiter:
            try:
                contents[picture.hash] = await pod.fetch(picture, max_bytes=picture.size)
            except McppError as error:
                logger.warning("cannot fetch the picture %s: %s", picture.hash[:16], error)

    with anyio.move_on_after(seconds) as scope:
        async with anyio.create_task_group() as tasks:
            for picture in missing:
                tasks.start_soon(fetch, picture)
    if scope.cancelled_caught:
        logger.warning("not all pictures could be fetched within %g s", seconds)
    return {hash: content for hash, content in contents.items() if content is not None}
