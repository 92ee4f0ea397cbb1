"""Summaries of tool results, and the rule that marks large results as transient.

Format of a summary: "15 activity records (page 1/9, IDs: 72, 73, 74…)".
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, overload

from mcpp.tokens import estimate, image_tokens
from mcpp.transient.marks import cut, read_mark, transient
from mcpp.transient.results import ModelT, Result, ResultModel, as_json, changed, encoded
from mcpp.transient.tables import read_table, stripped

_Found = tuple[str, Sequence[Any], Mapping[str, Any]]
"""Records: their key, the list, and the enclosing object."""

SHOWN_IDS: Final = 3
_GENERIC: Final = frozenset({"records", "items", "results", "data", "rows", "entries", "result"})
_ID_KEYS: Final = ("id", "ID", "_id", "uuid", "key", "name", "title")
_PAGE_KEYS: Final = ("page", "page_number", "pageNumber", "current_page", "currentPage")
_PAGES_KEYS: Final = ("pages", "total_pages", "totalPages", "page_count", "pageCount")
_MEDIA: Final = {
    "image": "image",
    "audio": "recording",
    "resource": "file",
    "resource_link": "link",
}


@dataclass(frozen=True, slots=True)
class TransientRule:
    """Thresholds above which a result is marked as transient: records, or tokens saved."""

    noun: str | None = None
    min_records: int = 5
    min_saved_tokens: int = 500


@overload
def mark_by_rule(result: Result, rule: TransientRule | str | bool = True) -> dict[str, Any]: ...
@overload
def mark_by_rule(result: ModelT, rule: TransientRule | str | bool = True) -> ModelT: ...
def mark_by_rule(
    result: Result | ModelT, rule: TransientRule | str | bool = True
) -> dict[str, Any] | ModelT:
    """Return the result, marked as transient if the rule applies (T-03), as `@tool(transient=…)`.

    `True` is the default rule, a string is the rule's noun ("activity"), `False` marks nothing. A
    result that is already marked as transient is returned unchanged; one that has consumed others
    may be transient as well.
    """
    if not isinstance(rule, TransientRule):
        if rule is False:
            return changed(result, dict)
        rule = TransientRule(noun=rule if isinstance(rule, str) else None)
    stated = rule
    return changed(result, lambda given: _marked(given, stated))


def _marked(result: Result, rule: TransientRule) -> dict[str, Any]:
    if result.get("isError") or read_mark(result).transient:
        return dict(result)
    found = find_records(result)
    summary = _summary_of(result, found, rule.noun)
    enough = found is not None and len(found[1]) >= rule.min_records
    if not enough:
        saved = estimate(visible_text(result)) + _image_tokens(result) - estimate(summary)
        enough = saved >= rule.min_saved_tokens
    return transient(result, summary) if enough else dict(result)


def summarize(result: Result | ResultModel, *, noun: str | None = None) -> str:
    """Return a one-line summary of a result: number of records, page, first ids."""
    result = as_json(result)
    return _summary_of(result, find_records(result), noun)


def _summary_of(result: Result, found: _Found | None, noun: str | None) -> str:
    if found is None:
        return _size_of(result, noun)
    key, records, around = found
    # Without a noun, the key may be one: {"activities": […]}.
    what = f"{noun} records" if noun else ("records" if key in _GENERIC else key)
    if len(records) == 1 and what.endswith("records"):
        what = what[:-1]
    facts = [fact for fact in (_page(around), _ids(records)) if fact]
    return cut(f"{len(records):,} {what}" + (f" ({', '.join(facts)})" if facts else ""))


def find_records(result: Result) -> _Found | None:
    """Return the records in a result.

    They are in the structured content or, where that has no list, in the text: servers also wrap a
    text as `{"result": "…"}`.
    """
    return _records_in(result.get("structuredContent")) or _records_in(_read_text(result))


def _records_in(value: Any) -> _Found | None:
    if isinstance(value, list):
        return "records", value, {}
    if not isinstance(value, Mapping):
        return None
    lists = {key: item for key, item in value.items() if isinstance(item, list)}
    if not lists:
        return None
    key = max(lists, key=lambda name: (len(lists[name]), name in _GENERIC))
    return key, lists[key], value


def visible_text(result: Result) -> str:
    """Return all text in a result that a model sees."""
    parts = [text for block in blocks_of(result) if (text := text_in(block)) is not None]
    if not parts and result.get("structuredContent") is not None:
        parts = [compact(result["structuredContent"])]
    return "\n".join(parts)


def blocks_of(result: Result) -> list[Mapping[str, Any]]:
    """Return a result's content blocks, skipping values that are not objects."""
    content = result.get("content")
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict)]


def text_in(block: Mapping[str, Any]) -> str | None:
    """Return the text of a content block, or of the resource that is embedded in it."""
    resource = block.get("resource") if block.get("type") == "resource" else None
    text = (resource if isinstance(resource, Mapping) else block).get("text")
    return text if isinstance(text, str) else None


def compact(value: Any) -> str:
    """Return a value as compact JSON, keys in their original order."""
    return encoded(value).decode()


def _read_text(result: Result) -> Any:
    """Return the JSON or the table that a result's text consists of.

    Some servers send a list as one block of JSON for each record.
    """
    blocks = blocks_of(result)
    texts = [stripped(text) for block in blocks if (text := text_in(block)) is not None]
    if not texts or len(texts) < len(blocks):
        return None
    if len(texts) == 1:
        is_json = texts[0][:1] in ("[", "{")
        return _parsed(texts[0]) if is_json else read_table(texts[0])
    if all(text[:1] == "{" for text in texts):
        records = [_parsed(text) for text in texts]
        return None if None in records else records
    return None


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _size_of(result: Result, noun: str | None) -> str:
    text = visible_text(result)
    types = [block.get("type") for block in blocks_of(result) if text_in(block) is None]
    counts = [(types.count(type), name) for type, name in _MEDIA.items()]
    parts = [f"{len(text):,} characters of {noun or 'text'}"] if text else []
    parts += [f"{count} {name}{'s' if count > 1 else ''}" for count, name in counts if count]
    lines = text.strip().splitlines()
    opening = f": {cut(lines[0], 60)}" if lines else ""
    return cut((", ".join(parts) or "nothing") + opening)


def _image_tokens(result: Result) -> int:
    images = [block.get("data") for block in blocks_of(result) if block.get("type") == "image"]
    return sum(image_tokens(data) for data in images if isinstance(data, str))


def _page(around: Mapping[str, Any]) -> str:
    nested = around.get("pagination")
    places = [around, nested] if isinstance(nested, Mapping) else [around]
    page = _first_int(places, _PAGE_KEYS)
    pages = _first_int(places, _PAGES_KEYS)
    if page is None:
        return ""
    return f"page {page}" if pages is None else f"page {page}/{pages}"


def _first_int(places: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int | None:
    for place in places:
        for key in keys:
            value = place.get(key)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return None


def _ids(records: Sequence[Any]) -> str:
    for key in _ID_KEYS:
        ids = [record.get(key) for record in records[:SHOWN_IDS] if isinstance(record, Mapping)]
        if ids and all(isinstance(value, str | int) for value in ids):
            shown = ", ".join(cut(str(value), 40) for value in ids)
            return f"IDs: {shown}{'…' if len(records) > SHOWN_IDS else ''}"
    return ""
