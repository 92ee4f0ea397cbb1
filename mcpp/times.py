"""Times as people write them: `10:00`, `yesterday`, `2h ago`, `2026-11-17T10:00+01:00`.

And times as envelopes have them.

There is no clock here: `now` is an argument, and its time zone is the one in which times without a
zone are read.
"""

import re
from datetime import UTC, datetime, time, timedelta
from typing import Final

from mcpp.errors import TimeError

__all__ = ["FORMS", "TimeLike", "parse_time", "read_timestamp"]

FORMS: Final = "10:00, yesterday, yesterday 18:30, 2h ago, 3d, 2026-11-17, 2026-11-17T10:00+01:00"
"""Examples of every form, for help and error messages."""

TimeLike = datetime | str
"""A time: a datetime, or a text that `parse_time` reads."""

_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_UNIT_NAMES: Final = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "m": ("m", "min", "mins", "minute", "minutes"),
    "h": ("h", "hr", "hrs", "hour", "hours"),
    "d": ("d", "day", "days"),
    "w": ("w", "week", "weeks"),
}
_SECONDS: Final = {
    name: _UNIT_SECONDS[unit] for unit, names in _UNIT_NAMES.items() for name in names
}
_DURATION: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([a-z]+) ?", re.ASCII)
_CLOCK: Final = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?", re.ASCII)
_HAS_CLOCK: Final = re.compile("[t :]")
_DAYS_AGO: Final = {"today": 0, "yesterday": 1}
# Longer texts are no times; a limit keeps error messages short.
_MAX_CHARACTERS: Final = 64


def parse_time(value: TimeLike, now: datetime, *, is_end: bool = False) -> datetime:
    """Return the time that a text names, as seen at `now`, or a datetime with a time zone.

    A time of day is the latest one that is not in the future. A day is its beginning or, with
    `is_end`, the beginning of the next day: `until:yesterday` includes all of yesterday. Without a
    zone, texts and datetimes are in the zone of `now`.

    Raises TimeError for any other text, and ValueError if `now` has no zone.
    """
    if now.tzinfo is None:
        raise ValueError("now must have a time zone")
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=now.tzinfo)
    words = " ".join(value[: _MAX_CHARACTERS + 1].lower().split())
    found = None
    if len(value) <= _MAX_CHARACTERS:
        try:
            found = _ago(words, now) or _on_day(words, now, is_end) or _absolute(words, now, is_end)
        except (OverflowError, ValueError):
            found = None
    if found is None:
        raise TimeError(value[:_MAX_CHARACTERS])
    return found


def read_timestamp(ts: str) -> datetime:
    """Return the time of a valid envelope's `ts`; of one in the year 0, the earliest datetime."""
    try:
        return datetime.fromisoformat(ts)
    except ValueError:  # E-12 allows the year 0, Python has none
        return datetime.min.replace(tzinfo=UTC)


def _ago(words: str, now: datetime) -> datetime | None:
    if words == "now":
        return now
    left = words.removesuffix("ago").rstrip()
    seconds = 0.0
    while left:
        part = _DURATION.match(left)
        if part is None or part[2] not in _SECONDS:
            return None
        seconds += float(part[1]) * _SECONDS[part[2]]
        left = left[part.end() :]
    if words in ("", "ago"):
        return None
    # In UTC: a difference of local times would ignore a change of the clocks in between.
    return (now.astimezone(UTC) - timedelta(seconds=seconds)).astimezone(now.tzinfo)


def _on_day(words: str, now: datetime, is_end: bool) -> datetime | None:
    day, _, rest = words.partition(" ")
    if day in _DAYS_AGO:
        clock = _clock(rest) if rest else time()
        date = now.date() - timedelta(days=_DAYS_AGO[day] - (is_end and not rest))
        return None if clock is None else datetime.combine(date, clock, now.tzinfo)
    clock = _clock(words)
    if clock is None:
        return None
    found = datetime.combine(now.date(), clock, now.tzinfo)
    if found.timestamp() > now.timestamp():
        found = datetime.combine(now.date() - timedelta(days=1), clock, now.tzinfo)
    return found


def _clock(text: str) -> time | None:
    parts = _CLOCK.fullmatch(text)
    if parts is None:
        return None
    hour, minute, second = (int(part or 0) for part in parts.groups())
    return time(hour, minute, second)


def _absolute(words: str, now: datetime, is_end: bool) -> datetime:
    found = datetime.fromisoformat(words.upper())
    if is_end and not _HAS_CLOCK.search(words):
        found += timedelta(days=1)
    return found if found.tzinfo is not None else found.replace(tzinfo=now.tzinfo)
