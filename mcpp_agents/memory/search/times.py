"""Times in texts: which days an expression means, and which period a goal asks for.

"Last Tuesday" in a text means a day counted from the text's own time. The days that a text means
are indexed with it, as words ("2023-05-16", "2023-05", "may", "2023"), so that a goal with a date
finds it by its words.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Final

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
_UNIT_DAYS: Final = {"day": 1, "night": 1, "week": 7, "weekend": 7, "month": 30, "year": 365}

_NUMBER: Final = r"\d{1,3}|" + "|".join(sorted(map(re.escape, _NUMBERS), key=len, reverse=True))
_AGO: Final = re.compile(rf"\b({_NUMBER})\s+(day|night|week|weekend|month|year)s?\s+ago\b")
_RELATIVE: Final = re.compile(
    rf"\b(last|past|this|next|coming)\s+(day|night|week|weekend|month|year|{'|'.join(_DAYS)})\b"
)
_NEAR: Final = {
    "yesterday": -1, "last night": -1, "today": 0, "tonight": 0, "this morning": 0,
    "this afternoon": 0, "this evening": 0, "tomorrow": 1, "the day before yesterday": -2,
}  # fmt: skip
_NEARBY: Final = re.compile(rf"\b({'|'.join(sorted(_NEAR, key=len, reverse=True))})\b")
_MONTH: Final = "|".join(MONTHS)
_DATE: Final = re.compile(
    rf"\b(?:(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?)?({_MONTH})(?:\s+(\d{{1,2}})(?:st|nd|rd|th)?\b)?"
    r"(?:,?\s+(\d{4}))?\b"
)
_ISO: Final = re.compile(r"\b(\d{4})-(\d{2})(?:-(\d{2}))?\b")
_SEASON: Final = r"spring|summer|autumn|winter|christmas|easter|birthday"
# What tells when something was, without saying it to the day.
_CUE: Final = re.compile(
    rf"\b(?:yesterday|today|tonight|tomorrow|ago|since|recently|lately|{'|'.join(_DAYS)}|{_MONTH}"
    rf"|(?:last|past|next|this|every)\s+(?:day|night|week|weekend|month|year|{_SEASON}|morning|"
    r"evening|time|summer)|(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th)|at \d|o'clock|the other day)\b"
)
_ASKS_WHEN: Final = re.compile(
    r"\b(?:when|how long|how often|since when|until when|(?:what|which)\s+(?:\w+\s+)?"
    r"(?:date|day|days|month|year|week|weekend|time|season))\b"
)
_MAX_DAYS: Final = 8
_MAX_CHARS: Final = 4_000


def asks_when(goal: str) -> bool:
    """Return whether a goal asks for a time."""
    return _ASKS_WHEN.search(goal.lower()) is not None


def tells_when(text: str) -> bool:
    """Return whether a text contains an expression of time."""
    return _CUE.search(text[:_MAX_CHARS].lower()) is not None


def date_terms(text: str, since: float | None) -> list[str]:
    """Return index terms for the days that a text means; `since` is the text's own time."""
    origin = None if since is None else datetime.fromtimestamp(since, UTC).date()
    days = [] if origin is None else [origin]
    days += mentioned_days(text[:_MAX_CHARS], origin)
    terms: dict[str, None] = {}
    for day in days[: _MAX_DAYS + 1]:
        terms.update(
            dict.fromkeys(
                (day.isoformat(), day.strftime("%Y-%m"), MONTHS[day.month - 1], f"{day:%Y}")
            )
        )
    return list(terms)


def mentioned_days(text: str, origin: date | None) -> list[date]:
    """Return the days that a text mentions, relative ones counted from `origin`."""
    lowered = text.lower()
    found = list(_absolute(lowered, origin))
    if origin is not None:
        for days in _relative(lowered, origin):
            try:
                found.append(origin + timedelta(days=days))
            except OverflowError:
                continue
    return list(dict.fromkeys(found))


def _absolute(text: str, origin: date | None) -> Iterator[date]:
    for match in _DATE.finditer(text):
        day, month, after, year = match.groups()
        if year is None and (origin is None or (match[2] == "may" and not (day or after))):
            continue  # a verb, or a month of an unknown year
        at = _day(int(year) if year else origin.year, MONTHS.index(month) + 1, day or after or 1)  # type: ignore[union-attr]
        if at is not None:
            yield at
    for match in _ISO.finditer(text):
        at = _day(int(match[1]), int(match[2]), match[3] or 1)
        if at is not None:
            yield at


def _day(year: int, month: int, day: str | int) -> date | None:
    try:
        return date(year, month, int(day))
    except ValueError:
        return None


def _relative(text: str, origin: date) -> Iterator[int]:
    for match in _NEARBY.finditer(text):
        yield _NEAR[match[1]]
    for match in _AGO.finditer(text):
        number = int(match[1]) if match[1].isdigit() else _NUMBERS[match[1]]
        yield -number * _UNIT_DAYS[match[2]]
    for match in _RELATIVE.finditer(text):
        word, unit = match.groups()
        if unit in _DAYS:
            back = (origin.weekday() - _DAYS.index(unit)) % 7
            if word in ("last", "past"):
                yield -(back or 7)
            else:
                yield (7 - back) % 7 or (7 if word == "next" else 0)
        elif word in ("last", "past"):
            yield -_UNIT_DAYS[unit]
        elif word in ("next", "coming"):
            yield _UNIT_DAYS[unit]
