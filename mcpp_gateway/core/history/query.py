"""A query of `pod/history`: what is asked for, from where on, and how much of it."""

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from mcpp.errors import FilterError, McppError
from mcpp.filters import Filter, everything, in_context, parse
from mcpp.protocol.envelope import ID_PATTERN
from mcpp_gateway.core.history.words import Words

MAX_LIMIT: Final = 500
DEFAULT_LIMIT: Final = 100
MAX_TEXT_CHARACTERS: Final = 1000

_is_id: Final = re.compile(ID_PATTERN).fullmatch
_CURSOR: Final = re.compile(r"([0-9]{1,18})-([0-9]{1,18})?")
_MEMBERS: Final = frozenset(
    ("filter", "context", "text", "after", "before", "limit", "order", "cursor")
)


class HistoryError(McppError):
    """A query that cannot be answered; `member` says which part of it is wrong."""

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.member} {self.reason}"


class Span(NamedTuple):
    """The positions that a query has yet to look at. Without an end it is open."""

    start: int
    end: int | None

    @property
    def cursor(self) -> str:
        """The span as clients are given it."""
        return f"{self.start}-{'' if self.end is None else self.end}"


class HistoryQuery(msgspec.Struct, frozen=True, kw_only=True):
    """A valid query. Bounds are exclusive: an envelope id, or a Unix time."""

    filter: Filter = everything  # with the context, which is a filter, too
    words: Words | None = None
    after: str | float | None = None
    before: str | float | None = None
    limit: int = DEFAULT_LIMIT
    newest_first: bool = True
    rest: Span | None = None  # of an earlier page; then the bounds are not looked at
    given: dict[str, Any] = {}  # as it was asked


def parse_query(payload: object) -> HistoryQuery:
    """Return the query of a payload. Raises HistoryError."""
    if payload is None:
        payload = {}
    if not isinstance(payload, dict):
        raise HistoryError("payload", "must be an object")
    # E: null for an optional member is its absence.
    given = {name: value for name, value in payload.items() if value is not None}
    unknown = sorted(given.keys() - _MEMBERS)
    if unknown:
        raise HistoryError(unknown[0][:40], "is not a member of a query")
    bounds = {name: _bound(given, name) for name in ("after", "before") if name in given}
    given |= bounds
    return HistoryQuery(
        filter=_filter(given),
        words=_words(given.get("text")),
        **bounds,
        limit=_limit(given.get("limit", DEFAULT_LIMIT)),
        newest_first=_newest_first(given.get("order", "newest")),
        rest=_rest(given.get("cursor")),
        given=given,
    )


def _filter(given: Mapping[str, Any]) -> Filter:
    try:
        found = parse(given["filter"]) if "filter" in given else everything
    except FilterError as error:
        raise HistoryError("filter", str(error)) from None
    context = given.get("context")
    if context is None:
        return found
    try:
        return in_context(context, descendants=True) & found
    except FilterError:
        raise HistoryError("context", "is not the id of a context") from None


def _words(text: object) -> Words | None:
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise HistoryError("text", "must be a string")
    if len(text) > MAX_TEXT_CHARACTERS:
        raise HistoryError("text", f"is longer than {MAX_TEXT_CHARACTERS} characters")
    try:
        return Words.parse(text)
    except ValueError as error:
        raise HistoryError("text", str(error)) from None


def _bound(given: Mapping[str, Any], member: str) -> str | float | None:
    value = given.get(member)
    if value is None:
        return None
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise HistoryError(member, "is not a time") from None
    if isinstance(value, str) and _is_id(value):
        return value
    raise HistoryError(member, "is neither the id of an envelope nor a Unix time")


def _limit(value: object) -> int:
    if type(value) is not int or not 1 <= value <= MAX_LIMIT:
        raise HistoryError("limit", f"must be a whole number from 1 to {MAX_LIMIT}")
    return value


def _newest_first(value: object) -> bool:
    if value not in ("newest", "oldest"):
        raise HistoryError("order", 'must be "newest" or "oldest"')
    return value == "newest"


def _rest(value: object) -> Span | None:
    if value is None:
        return None
    found = _CURSOR.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise HistoryError("cursor", "is not that of an earlier page")
    start, end = found.groups()
    return Span(int(start), None if end is None else int(end))
