"""Mistakes in a configuration."""

from mcpp.errors import McppError


class ConfigError(McppError):
    """An invalid configuration, described in one line."""


class BadKeyError(Exception):
    """A key with an invalid value; `load` adds the place in the file."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(key, reason)
        self.key = key
        self.reason = reason
