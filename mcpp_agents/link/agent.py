"""The link: reads one pod and writes the other, in both directions.

The target's log is its only state. On a start it reads there what it mirrored last, and goes on in
the source behind the oldest of these, without repeating them. A bounded number is sent before the
first of them is echoed, fewer than are read at a start: so what is missing is always among those.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from mcpp import EncodeError, Envelope, Gap, McppError, Options, Pod, Refused, connect
from mcpp.client.local_pod import Address
from mcpp.errors import HistoryLostError, NotInHistoryError, TooLargeError
from mcpp.filters import Filter, sender
from mcpp_agents.link.mirror import PREFIX, TEXTS, LinkedPod, Mirror
from mcpp_agents.link.origin import MirrorOrigin, Reference

logger = logging.getLogger("mcpp.link")

# Read of the target's log at a start: those mirrored last, to know them when they are answered.
_KNOWN: Final = 512
# Sent and not echoed yet: a round trip for each would bound how much is mirrored.
_WINDOW: Final = 64
_RANDOM_BYTES: Final = 24  # of an id in place of one that is taken: as many digits as P-90 has
# What a rate limit refuses is sent again for this long: nothing is to be left out.
_PATIENCE_SECONDS: Final = 7 * 86400.0
_OPTIONS: Final = Options(keep_trying=True, rate_limit_seconds=_PATIENCE_SECONDS)


class PodLinkError(McppError):
    """The two pods cannot be linked."""


@dataclass(frozen=True, kw_only=True)
class LinkOptions:
    """What is mirrored, and how.

    Args:
        filter: which envelopes of the first pod are mirrored to the second.
        back: which envelopes of the second pod are mirrored to the first, besides answers and
            what is in mirrored contexts; None: only these.
        is_one_way: mirror nothing from the second pod to the first.
        as_is: globs of kinds that are mirrored as they are; others become `link/KIND`.
        through: other links, whose mirrored envelopes go on.
        since: the time to begin at where nothing was mirrored yet; None: now.
        names: what to call the pods; None for a pod's own name.
    """

    filter: Filter
    back: Filter | None = None
    is_one_way: bool = False
    as_is: tuple[str, ...] = TEXTS
    through: frozenset[str] = frozenset()
    since: str | None = None
    names: tuple[str | None, str | None] = (None, None)


@dataclass(frozen=True)
class _Start:
    """Where a direction begins, and what behind that place was mirrored already."""

    after: str
    mirrored: Mapping[str, tuple[str, str]]  # by id in the source: the sender, the id in the target


async def run_link(first: Address, second: Address, options: LinkOptions) -> None:
    """Mirror between two pods until cancelled. Raises PodLinkError, and what `connect` raises."""
    async with connect(first, options=_OPTIONS) as one, connect(second, options=_OPTIONS) as two:
        names = options.names[0] or one.name, options.names[1] or two.name
        for name in names:
            if Reference.parse(f"mcpp://{name}/id") is None:
                raise PodLinkError(f"{name!r} cannot be the name of a pod: choose one with --names")
        if names[0] == names[1]:
            raise PodLinkError(f"both pods are called {names[0]!r}: give them names with --names")
        there_from = await _find_start(one, two, names[0], options.since)
        back_from = await _find_start(two, one, names[1], None)
    async with _joined(first, there_from) as one, _joined(second, back_from) as two:
        here, other = LinkedPod(names[0], one.me), LinkedPod(names[1], two.me)
        there = Mirror(here, other, options.filter, options.as_is, options.through)
        back = Mirror(other, here, options.back, options.as_is, options.through, there)
        there.reverse = back
        logger.info("%s and %s are linked", *names)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_run, there, there_from, one, two)
            tasks.start_soon(_run, back, back_from, two, None if options.is_one_way else one)


@asynccontextmanager
async def _joined(address: Address, start: _Start) -> AsyncIterator[Pod]:
    async with connect(
        address, after=start.after, own=True, on_gap=_report_gap, options=_OPTIONS
    ) as pod:
        yield pod


async def _find_start(source: Pod, target: Pod, name: str, since: str | None) -> _Start:
    """Find where mirroring goes on, from what the target's log holds of the source."""
    found: dict[str, tuple[str, str]] = {}  # the newest first
    async for message in target.history(sender(target.me), order="newest", limit=_KNOWN):
        origin = MirrorOrigin.of(message.envelope)
        if origin is not None and origin.path[-1].pod == name:
            found[origin.path[-1].id] = origin.sender, message.id
    for id in reversed(found):
        try:
            await source.history(after=id, limit=1).all()
        except Refused:
            continue  # it is too old for the source's log
        return _Start(id, found)
    before = await source.history(until=since, order="newest", limit=1).all()
    if not before:
        raise PodLinkError(f"the log of {name} begins after {since}: choose a later time")
    return _Start(before[0].id, {})


async def _run(mirror: Mirror, start: _Start, source: Pod, target: Pod | None) -> None:
    """Mirror what the source brings. Without a target, only read: unread, it would be cut off."""
    mirror.learn(source.contexts.values())
    for id, (author, mirrored_as) in start.mirrored.items():
        mirror.remember(id, author, mirrored_as)
    room = anyio.Semaphore(_WINDOW)
    has_begun = bool(start.mirrored)
    async with anyio.create_task_group() as sending:
        async for message in source:
            envelope = message.envelope
            try:
                mirrored = mirror.translate(envelope)
            except EncodeError as error:
                logger.warning("%s of %s is not mirrored: %s", envelope.id, source.name, error)
                continue
            if mirrored is None or target is None or envelope.id in start.mirrored:
                continue
            await room.acquire()
            if has_begun:
                # Tasks start, and so queue their envelopes, in this order.
                sending.start_soon(_send, mirror, mirrored, target, room)
            else:  # alone: a restart goes on behind the first one
                await _send(mirror, mirrored, target, room)
                has_begun = True


async def _send(mirror: Mirror, mirrored: Envelope, target: Pod, room: anyio.Semaphore) -> None:
    """Send a mirrored envelope. What the target refuses is reported, and the link goes on."""
    try:
        while True:
            try:
                await target.send_envelope(mirrored)
            except Refused as error:
                if error.code == "duplicate_id":
                    if await _is_there(mirror, mirrored, target):
                        return
                    mirrored = mirror.rename(mirrored, secrets.token_hex(_RANDOM_BYTES))
                elif error.code == "loop_suspected" and not mirrored.kind.startswith(PREFIX):
                    # A person may have spoken in the source, but none did here: agents are not to
                    # answer it.
                    mirrored = mirrored.__replace__(kind=f"{PREFIX}{mirrored.kind}")
                else:
                    raise
            else:
                return
    except (Refused, TooLargeError) as error:
        logger.warning("%s is not mirrored to %s: %s", mirrored.id, target.name, error)
    finally:
        room.release()


async def _is_there(mirror: Mirror, mirrored: Envelope, target: Pod) -> bool:
    """Return whether a link that is to be continued has brought the same original already."""
    try:
        (found,) = await target.around(mirrored.id, before=0, after=0)
    except (NotInHistoryError, HistoryLostError, Refused):
        return False
    there, ours = MirrorOrigin.of(found.envelope), MirrorOrigin.of(mirrored)
    is_same = there is not None and ours is not None and there.path[0] == ours.path[0]
    return is_same and found.sender in mirror.through


def _report_gap(gap: Gap) -> None:
    reason = "its log was lost" if gap.lost_log else "they are too old for its log"
    logger.warning("envelopes were missed: %s", reason)
