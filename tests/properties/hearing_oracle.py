"""What a participant may hear, evaluated naively from JSON: the oracle of `test_hears`.

It shares nothing with the gateway: it reads filters and envelopes as JSON, and evaluates each part.
"""

import re
from fnmatch import translate
from functools import cache
from typing import Any

from mcpp.protocol.contexts import Lineage

GATEWAY = "system:gateway"


@cache
def _glob(pattern: str) -> re.Pattern[str]:
    escaped = "".join("*" if c == "*" else f"[{c}]" if c in "?[" else c for c in pattern)
    return re.compile(translate(escaped), re.DOTALL)


def leaf(part: dict[str, Any], envelope: dict[str, Any] | None, lineage: Lineage | None) -> Any:
    """Return whether a leaf holds; None if that depends on an envelope that is not given."""
    if "main" in part:
        return lineage is None
    if "type" in part:
        return lineage is not None and lineage.type == part["type"]
    if "context" in part:
        ids: tuple[str, ...] = () if lineage is None else (lineage.id,)
        if lineage is not None and part.get("descendants"):
            ids += lineage.ancestors
        return part["context"] in ids
    if envelope is None:
        return None
    if "kind" in part:
        return _glob(part["kind"]).match(envelope["kind"]) is not None
    if "from" in part:
        return envelope["from"] == part["from"]
    return part["to"] in (envelope.get("to") or ())


def holds(part: dict[str, Any], envelope: dict[str, Any] | None, lineage: Lineage | None) -> Any:
    """Return whether a filter passes: True, False or None for unknown (Kleene's logic)."""
    if "not" in part:
        value = holds(part["not"], envelope, lineage)
        return None if value is None else not value
    for name, decisive in (("any", True), ("all", False)):
        if name in part:
            values = [holds(each, envelope, lineage) for each in part[name]]
            if decisive in values:
                return decisive
            return None if None in values else not decisive
    return leaf(part, envelope, lineage)


def may_hear(
    me: str, hears: dict[str, Any], envelope: dict[str, Any], lineage: Lineage | None
) -> bool:
    """Return whether an envelope of a participant may reach another."""
    if envelope["from"] == me or me in (envelope.get("to") or ()):
        return True
    return holds(hears, envelope, lineage) is True


def may_know(hears: dict[str, Any], lineage: Lineage) -> bool:
    """Return whether a participant may know of a context."""
    return holds(hears, None, lineage) is not False
