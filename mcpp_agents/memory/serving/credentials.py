"""Bearer tokens and the principals they stand for, from a TOML file.

[principals.alice]
token_env = "ALICE_TOKEN"        # or token, token_sha256, token_file
organization = "local"           # "" stands for none: every call is then refused
projects = ["web", "pod:demo"]   # or "*" for every project of the organization
"""

import hashlib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from mcpp_agents.memory.access import OWNER, Principal
from mcpp_agents.memory.errors import MemoryFault

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]+")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    token: str | None = None
    token_sha256: str | None = None
    token_file: str | None = None
    token_env: str | None = None
    organization: str = "local"
    projects: list[str] | str = []


class _File(msgspec.Struct, forbid_unknown_fields=True):
    principals: dict[str, _Entry]


class Credentials:
    """Which principal a token stands for. It keeps digests, never the tokens."""

    def __init__(self, by_digest: Mapping[str, Principal]) -> None:
        self._by_digest = dict(by_digest)

    @classmethod
    def read(cls, path: Path) -> "Credentials":
        """The credentials of a file.

        Raises:
            MemoryFault: it cannot be read, or an entry in it is wrong; names which.
        """
        try:
            file = msgspec.convert(tomllib.loads(path.read_text()), _File)
        except (OSError, ValueError) as error:  # both libraries' errors are ValueErrors
            raise MemoryFault(f"{path}: {error}") from error
        found: dict[str, Principal] = {}
        for name, entry in file.principals.items():
            if name == OWNER.id or name.startswith("pod:"):
                # It would forget and find what the file's owner or a pod keeps.
                raise MemoryFault(f"{path}: the name {name} is reserved")
            digest = _digest(path, name, entry)
            if digest in found:
                raise MemoryFault(f"{path}: {name} has the token of {found[digest].id}")
            projects = _projects(path, name, entry.projects)
            try:
                found[digest] = Principal(name, projects, entry.organization or None)
            except ValueError as error:
                raise MemoryFault(f"{path}: {name!r}: {error}") from error
        return cls(found)

    def principal_of(self, token: str) -> Principal | None:
        """Whom a token stands for; looked up by digest, so that timing tells nothing."""
        return self._by_digest.get(hashlib.sha256(token.encode()).hexdigest())


def _digest(path: Path, name: str, entry: _Entry) -> str:
    names = ("token", "token_sha256", "token_file", "token_env")
    given: dict[str, Any] = {key: value for key in names if (value := getattr(entry, key))}
    if len(given) != 1:
        raise MemoryFault(f"{path}: {name} needs exactly one of {', '.join(names)}")
    if entry.token_sha256:
        if not _DIGEST.fullmatch(entry.token_sha256):
            raise MemoryFault(f"{path}: {name}: token_sha256 must be 64 of 0-9a-f")
        return entry.token_sha256
    token = entry.token or ""
    if entry.token_env:
        token = os.environ.get(entry.token_env, "")
    elif entry.token_file:
        try:
            token = (path.parent / entry.token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise MemoryFault(f"{path}: {name}: {error}") from error
    if not _TOKEN.fullmatch(token):
        raise MemoryFault(f"{path}: {name}: the token is empty or has other than A-Za-z0-9._~-")
    return hashlib.sha256(token.encode()).hexdigest()


def _projects(path: Path, name: str, projects: list[str] | str) -> frozenset[str] | None:
    if projects == "*":
        return None
    if isinstance(projects, str):
        raise MemoryFault(f'{path}: {name}: projects is a list, or "*" for all')
    return frozenset(projects)
