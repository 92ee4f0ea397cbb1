"""A slow reference implementation of the envelope's rules, to test the decoder against.

It shares only the patterns with the codec, and parses everything with Python's `json`.
"""

import json
import math
import re
from datetime import datetime
from typing import Any, NoReturn
from urllib.parse import quote, unquote

from mcpp.protocol.envelope import (
    ID_PATTERN,
    MEDIA_TYPE_PATTERN,
    NAME_PATTERN,
    PARTICIPANT_PATTERN,
    POD_PATTERN,
)

REQUIRED = {"protocol", "id", "ts", "from", "kind", "payload"}


class RefusalError(Exception):
    """The text is not an envelope."""


class Pairs(list[tuple[str, Any]]):
    """The members of an object in order, including repeated names."""


def accepts(data: bytes) -> bool:
    try:
        check(data)
    except RefusalError:
        return False
    return True


def check(data: bytes) -> None:
    try:
        text = data.decode()
        root = json.loads(
            text,
            object_pairs_hook=Pairs,
            parse_int=number,
            parse_float=number,
            parse_constant=refuse,
        )
    except (ValueError, RecursionError):
        raise RefusalError from None
    members = unique(root)
    require(len(members) <= 256)
    members = without_nulls(members, "to", "correlation_id", "context", "attachments")
    require(members.keys() >= REQUIRED)
    check_value(root, depth=1)
    require(members["protocol"] == "mcpp/v0.1")
    matches(members["id"], ID_PATTERN)
    require(isinstance(members["ts"], str) and is_timestamp(members["ts"]))
    matches(members["from"], PARTICIPANT_PATTERN)
    require(is_kind(members["kind"]))
    if "correlation_id" in members:
        id_or_reference(members["correlation_id"])
    if "to" in members:
        require(type(members["to"]) is list and len(members["to"]) <= 1024)
        for name in members["to"]:
            matches(name, PARTICIPANT_PATTERN)
    if "context" in members:
        context = unique(members["context"])
        require(len(context) <= 256)
        context = without_nulls(context, "type", "parent", "metadata")
        matches(context.get("id"), ID_PATTERN)
        if "type" in context:
            require(is_kind(context["type"]))
        if "parent" in context:
            id_or_reference(context["parent"])
        if "metadata" in context:
            require(isinstance(context["metadata"], Pairs))
            require(len(source(source(text, "context"), "metadata").encode()) <= 2048)
    if "attachments" in members:
        require(type(members["attachments"]) is list and len(members["attachments"]) <= 32)
        require(len(source(text, "attachments").encode()) <= 16_384)
        for item in members["attachments"]:
            check_attachment(item, addressed="to" in members)


def check_attachment(item: Any, *, addressed: bool) -> None:
    members = unique(item)
    require(len(members) <= 256)
    matches(members.get("hash"), "[0-9a-f]{64}")
    matches(members.get("media_type"), MEDIA_TYPE_PATTERN)
    size = members.get("size")
    require(type(size) is float and size == int(size) and 0 <= size <= 2**53 - 1)
    if members.get("name") is not None:
        matches(members["name"], NAME_PATTERN)
    private = members.get("private")
    require(private is None or type(private) is bool)
    require(not private or addressed)


def without_nulls(members: dict[str, Any], *optional: str) -> dict[str, Any]:
    absent = [name for name in optional if members.get(name, 0) is None]
    return {name: value for name, value in members.items() if name not in absent}


def id_or_reference(value: Any) -> None:
    if isinstance(value, str) and value.startswith("mcpp://"):
        pod, slash, value = value.removeprefix("mcpp://").partition("/")
        require(slash == "/")
        matches(pod, POD_PATTERN)
    matches(value, ID_PATTERN)


def is_kind(value: Any) -> bool:
    """Return whether encoding what a kind decodes to gives the kind again."""
    if not isinstance(value, str) or not 1 <= len(value) <= 512 or not value.isascii():
        return False
    try:
        spelled = unquote(value, errors="strict")
    except UnicodeDecodeError:
        return False
    plain = "".join(chr(code) for code in range(33, 127) if chr(code) != "%")
    return quote(spelled, safe=plain) == value


def require(fact: bool) -> None:
    if not fact:
        raise RefusalError


def refuse(_: str) -> NoReturn:
    raise RefusalError


def unique(value: Any) -> dict[str, Any]:
    require(isinstance(value, Pairs))
    require(len(dict(value)) == len(value))
    return dict(value)


def number(text: str) -> float:
    require(len(text) <= 64 and math.isfinite(float(text)))
    return float(text)


def matches(value: Any, pattern: str) -> None:
    require(isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def check_value(value: Any, depth: int) -> None:
    """Reject values that nest too deep and strings that are not valid Unicode."""
    if isinstance(value, str):
        require(not any("\ud800" <= char <= "\udfff" for char in value))
    elif isinstance(value, list):
        require(depth <= 64)
        for item in value:
            if isinstance(value, Pairs):
                check_value(item[0], depth + 1)
                item = item[1]
            check_value(item, depth + 1)


def is_timestamp(text: str) -> bool:
    shape = r"(\d{4})(-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d+)?(Z|[+-](\d\d):(\d\d))"
    match = re.fullmatch(shape, text, re.ASCII)
    if match is None or int(match[5] or 0) > 23 or int(match[6] or 0) > 59:
        return False
    year = "2000" if match[1] == "0000" else match[1]  # Python's calendar has no year 0
    try:
        datetime.strptime(year + match[2], "%Y-%m-%dT%H:%M:%S")
    except ValueError:
        return False
    return match[2][-2:] < "60"


def source(text: str, name: str) -> str:
    """Return the source text of a member's value, in an object whose names are unique."""
    decoder = json.JSONDecoder()
    position = text.index("{") + 1
    while True:
        position = text.index('"', position)
        key, position = decoder.raw_decode(text, position)
        position = skip_space(text, text.index(":", position) + 1)
        _, end = decoder.raw_decode(text, position)
        if key == name:
            return text[position:end]
        position = end


def skip_space(text: str, position: int) -> int:
    while text[position] in " \t\n\r":
        position += 1
    return position
