"""Globs with `*` as the only wildcard, matched in linear time.

A regular expression would not be: one with twelve stars took a minute on a hostile text.
"""

from collections.abc import Callable


def compile_glob(pattern: str) -> Callable[[str], bool]:
    """Return a predicate for texts that match `pattern`, where `*` stands for any characters."""
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
