"""Times in texts: which day, month or year an expression means, and whether a goal asks for one.

"Last Tuesday" in a text means a day counted from the text's own. The times that a text means are
indexed with it, as words ("16may2023", "16may", "may2023", "may", "2023"), and a date in a goal
becomes the same words. So "the 16th of May", "2023-05-16" and, in a text, "yesterday" are one.
"""

import re
from collections.abc import Iterator
from datetime import date, timedelta
from itertools import chain
from typing import Final, NamedTuple

MONTHS: Final = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
_DAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_NUMBERS: Final = {
    word: number
    for number, word in enumerate(
        [
            "a",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
        ],
        1,
    )
} | {"an": 1, "one": 1, "couple of": 2, "a couple of": 2, "few": 3, "a few": 3}
_NUMBER: Final = r"\d{1,3}|" + "|".join(sorted(map(re.escape, _NUMBERS), key=len, reverse=True))
_WEEKDAY: Final = "|".join(_DAYS)
_UNIT: Final = f"day|night|week|fortnight|weekend|month|year|{_WEEKDAY}"
_UNIT_DAYS: Final = {"day": 1, "night": 1, "week": 7, "fortnight": 14}
_NEAR: Final = {
    "yesterday": -1, "last night": -1, "today": 0, "tonight": 0, "this morning": 0,
    "this afternoon": 0, "this evening": 0, "tomorrow": 1, "the day before yesterday": -2,
    "the day after tomorrow": 2,
}  # fmt: skip
_NEARBY: Final = re.compile(rf"\b({'|'.join(sorted(_NEAR, key=len, reverse=True))})\b")
# Not "for the first time in two years".
_COUNTED: Final = re.compile(
    rf"\b(?:(half )?({_NUMBER})\s+({_UNIT})s?\s+(ago|from now)|(?<!time )in\s+({_NUMBER})\s+"
    rf"({_UNIT})s?)\b"
)
_RELATIVE: Final = re.compile(
    rf"\b(?:(last|past|this|coming|next|on)\s+({_UNIT})|({_UNIT})\s+before\s+last)\b"
)
_STEPS: Final = {"last": -1, "past": -1, "next": 1}

_ISO: Final = re.compile(r"\b(\d{4})-(\d{2})(?:-(\d{2}))?\b(?!-?\d)")
_NUMERIC: Final = re.compile(r"\b(\d{1,2})([./])(\d{1,2})\2(\d{4})\b")
_YEAR: Final = re.compile(r"\b(?:in|during)\s+((?:19|20)\d\d)\b", re.IGNORECASE)
_MONTH: Final = "|".join(f"{name[:3]}(?:{name[3:]})?" if name[3:] else name for name in MONTHS)
# "It may rain", "they march" and "Ask June" name no month without such a word before.
_LEAD: Final = "in|on|of|by|since|until|till|during|from|before|after|early|mid|late|last|next|this"
_DATE: Final = re.compile(
    rf"\b(?:({_LEAD})\s+)?(?:the\s+)?((?:(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?)?"
    rf"({_MONTH}|sept)\b\.?(?:\s+(\d{{1,2}})(?:st|nd|rd|th)?\b(?!:))?(?:,?\s+(?:of\s+)?(\d{{4}})\b)?)",
    re.IGNORECASE,
)
_AMBIGUOUS: Final = frozenset({"march", "april", "may", "june", "august"})
_ORDINAL: Final = re.compile(r"\d(?:st|nd|rd|th)", re.IGNORECASE)  # unlike "step 2 may fail"

_SEASON: Final = r"spring|summer|autumn|winter|christmas|easter|birthday"
# What tells when something was, without saying it to the day.
_CUE: Final = re.compile(
    rf"\b(?:yesterday|today|tonight|tomorrow|ago|from now|since|recently|lately|{_WEEKDAY}"
    rf"|{'|'.join(MONTHS)}|(?:last|past|next|this|every)\s+(?:day|night|week|weekend|month|year|{_SEASON}|morning|"
    r"evening|time|summer)|(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th)|at \d|o'clock|the other day)\b"
)
_ASKS_WHEN: Final = re.compile(
    r"\b(?:when|how long|how often|since when|until when|(?:what|which)\s+(?:\w+\s+)?"
    r"(?:date|day|days|month|year|week|weekend|time|season))\b"
)
_MAX_TIMES: Final = 8
_MAX_CHARS: Final = 4_000


class Time(NamedTuple):
    """A day; where less is known, a month, a year, or a day or month of any year."""

    year: int | None
    month: int | None = None
    day: int | None = None

    @property
    def terms(self) -> list[str]:
        """The words by which texts that mean this time are found."""
        year = "" if self.year is None else str(self.year)
        month = "" if self.month is None else MONTHS[self.month - 1]
        day = "" if self.day is None else f"{self.day}{month}"
        parts = (day and day + year, day, month and month + year, month, year)
        return list(dict.fromkeys(filter(None, parts)))

    def includes(self, other: "Time") -> bool:
        """Return whether all that is known of this time is true of another."""
        return all(own in (None, its) for own, its in zip(self, other, strict=True))


class NamedTime(NamedTuple):
    """A time, and the part of a text that names it."""

    start: int
    shown: str
    time: Time

    @property
    def places(self) -> range:
        """The places of its characters in the text."""
        return range(self.start, self.start + len(self.shown))


def asks_when(goal: str) -> bool:
    """Return whether a goal asks for a time."""
    return _ASKS_WHEN.search(goal.lower()) is not None


def tells_when(text: str) -> bool:
    """Return whether a text contains an expression of time."""
    return _CUE.search(text[:_MAX_CHARS].lower()) is not None


def time_terms(text: str, origin: date | None) -> list[str]:
    """Return index terms for the times that a text means."""
    return list(dict.fromkeys(term for time in meant_times(text, origin) for term in time.terms))


def meant_times(text: str, origin: date | None) -> list[Time]:
    """Return the times that a text means: its own day `origin`, if that is known, and others."""
    times = [named.time for named in named_times(text, origin)]
    if origin is not None:
        times = [_of(origin), *times, *_relative(text[:_MAX_CHARS].lower(), origin)]
    return list(dict.fromkeys(times))[: _MAX_TIMES + 1]


def named_times(text: str, origin: date | None = None) -> list[NamedTime]:
    """Return the dates that a text contains; one without a year is that nearest to `origin`."""
    text = text[:_MAX_CHARS]
    found: list[NamedTime] = []
    taken: set[int] = set()
    for one in chain(_iso(text), _numeric(text), _spelled(text, origin), _years(text)):
        if taken.isdisjoint(one.places):
            taken.update(one.places)
            found.append(one)
    return found


def _iso(text: str) -> Iterator[NamedTime]:
    for match in _ISO.finditer(text):
        year, month, day = match.groups()
        if time := _time(int(year), int(month), int(day) if day else None):
            yield NamedTime(match.start(), match[0], time)


def _numeric(text: str) -> Iterator[NamedTime]:
    """Yield dates such as 16.5.2023 and 5/16/2023, but not 5/6/2023, which may be two."""
    for match in _NUMERIC.finditer(text):
        first, second, year = int(match[1]), int(match[3]), int(match[4])
        readings = [_time(year, second, first)]
        if match[2] == "/":
            readings.append(_time(year, first, second))
        valid = set(filter(None, readings))
        if len(valid) == 1:
            yield NamedTime(match.start(), match[0], valid.pop())


def _spelled(text: str, origin: date | None) -> Iterator[NamedTime]:
    for match in _DATE.finditer(text):
        lead, _, before, name, after, written = match.groups()
        word = name.lower()
        if not (lead or written):
            if not (before or after) and (word in _AMBIGUOUS or word not in MONTHS):
                continue
            if word in _AMBIGUOUS and name.islower() and not _ORDINAL.search(match[2]):
                continue
        month = next(number for number, one in enumerate(MONTHS, 1) if one[:3] == word[:3])
        day = int(before or after) if before or after else None
        if written or origin is None:
            time = _time(int(written) if written else None, month, day)
        else:
            time = _nearest(month, day, origin, (lead or "").lower())
        if time:
            yield NamedTime(match.start(2), match[2], time)


def _years(text: str) -> Iterator[NamedTime]:
    for match in _YEAR.finditer(text):
        yield NamedTime(match.start(1), match[1], Time(int(match[1])))


def _time(year: int | None, month: int, day: int | None) -> Time | None:
    try:
        date(2000 if year is None else year, month, 1 if day is None else day)
    except ValueError:
        return None
    return Time(year, month, day)


def _nearest(month: int, day: int | None, origin: date, lead: str) -> Time | None:
    """Return a day or month in the year that is nearest to `origin`, or next, or was last."""
    found: dict[int, Time] = {}
    for year in (origin.year - 1, origin.year, origin.year + 1):
        ahead = 31 * (12 * (year - origin.year) + month - origin.month)
        if day is not None:
            ahead += day - origin.day
        if (lead == "last" and ahead >= 0) or (lead == "next" and ahead <= 0):
            continue
        if time := _time(year, month, day):
            found.setdefault(abs(ahead), time)
    return found[min(found)] if found else None


def _of(day: date) -> Time:
    return Time(day.year, day.month, day.day)


def _relative(text: str, origin: date) -> Iterator[Time]:
    for match in _NEARBY.finditer(text):
        yield from _days(origin, _NEAR[match[1]])
    for match in _COUNTED.finditer(text):
        half, ago, unit, way, later, later_unit = match.groups()
        if half:
            if unit == "year":
                yield from _counted(origin, "month", 6 if way != "ago" else -6)
            continue
        written = ago or later
        number = int(written) if written.isdigit() else _NUMBERS[written]
        yield from _counted(origin, unit or later_unit, -number if way == "ago" else number)
    for match in _RELATIVE.finditer(text):
        word, unit, earlier = match.groups()
        if earlier:
            yield from _counted(origin, earlier, -2)
        elif word == "on":  # in the past or to come
            if unit in _DAYS:
                yield from _counted(origin, unit, -1)
                yield from _counted(origin, unit, 1)
        elif unit in _DAYS:
            ahead = (_DAYS.index(unit) - origin.weekday()) % 7
            is_today = ahead == 0 and word in ("this", "coming")
            yield from _days(origin, 0) if is_today else _counted(origin, unit, _STEPS.get(word, 1))
        elif unit == "weekend" or (word in _STEPS and unit not in ("day", "night")):
            yield from _counted(origin, unit, _STEPS.get(word, 0))


def _counted(origin: date, unit: str, number: int) -> Iterator[Time]:
    """Yield the time so many units later, or with a negative number earlier."""
    if unit in _DAYS:
        ahead = (_DAYS.index(unit) - origin.weekday()) % 7
        weeks = number - 1 if number > 0 and ahead else number
        yield from _days(origin, ahead + 7 * weeks)
    elif unit == "weekend":
        yield from _days(origin, 7 * number - origin.weekday() + 5)
        yield from _days(origin, 7 * number - origin.weekday() + 6)
    elif unit in ("month", "year"):
        year, month = divmod(12 * origin.year + origin.month - 1 + number, 12)
        if unit == "year":
            year, month = origin.year + number, -1
        if date.min.year <= year <= date.max.year:
            yield Time(year) if unit == "year" else Time(year, month + 1)
    else:
        yield from _days(origin, number * _UNIT_DAYS[unit])


def _days(origin: date, number: int) -> Iterator[Time]:
    try:
        yield _of(origin + timedelta(days=number))
    except OverflowError:
        return
