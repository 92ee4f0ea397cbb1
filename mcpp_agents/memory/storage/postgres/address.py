"""Addresses of databases. A password in one is never shown or logged."""

import re
from typing import Final

from mcpp_agents.memory.errors import MemoryStoreError

_URL: Final = re.compile(r"postgres(?:ql)?://", re.IGNORECASE)


def is_database(location: str) -> bool:
    """Return whether a location is the address of a database rather than a file."""
    return bool(_URL.match(location))


def connection_options(url: str) -> dict[str, str]:
    """Return the connection options in a URL.

    Raises:
        MemoryStoreError: the URL is invalid; the message does not repeat any part of it.
    """
    import psycopg.conninfo

    invalid = MemoryStoreError(
        "The database URL is invalid; special characters in a password must be percent-encoded"
    )
    try:
        found = psycopg.conninfo.conninfo_to_dict(url)
    except (psycopg.Error, UnicodeError):
        raise invalid from None  # libpq's own message may contain a part of the password
    options = {name: str(value) for name, value in found.items() if value is not None}
    # A slash or an @ in a password ends it too early, and the rest of it would be shown.
    if any("@" in options.get(name, "") for name in ("host", "dbname")):
        raise invalid
    return options


def shown(options: dict[str, str]) -> str:
    """Return the database's name and host for a message."""
    host = options.get("host") or options.get("hostaddr") or "the default host"
    return f"database {options.get('dbname') or 'default'} on {host}"
