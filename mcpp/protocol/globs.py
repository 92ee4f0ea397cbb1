"""Globs that know only `*`, matched in linear time.

Not by regular expressions: twelve stars against a hostile text took one of those a minute.
"""

from collections.abc import Callable


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Return a test for whole texts that match `pattern`, in which `*` is any run of characters."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern.__eq__
    *middle, last = rest
    middle = [part for part in middle if part]
    if not middle and not last:
        return lambda text: text.startswith(first)

    def matches(text: str) -> bool:
        if not text.startswith(first) or not text.endswith(last):
            return False
        start, end = len(first), len(text) - len(last)
        # The earliest place for each part leaves the most room for the next.
        for part in middle:
            start = text.find(part, start, end)
            if start < 0:
                return False
            start += len(part)
        return start <= end

    return matches
