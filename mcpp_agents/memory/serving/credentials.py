"""Bearer tokens and their principals, read from a TOML file.

[principals.alice]
token_env = "ALICE_TOKEN"        # or token, token_sha256, token_file
organization = "local"           # "" means none: every call is then refused
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
from mcpp_agents.memory.errors import MemoryStoreError

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~-]+")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")


class _PrincipalEntry(msgspec.Struct, forbid_unknown_fields=True):
    token: str | None = None
    token_sha256: str | None = None
    token_file: str | None = None
    token_env: str | None = None
    organization: str = "local"
    projects: list[str] | str = []


class _PrincipalsFile(msgspec.Struct, forbid_unknown_fields=True):
    principals: dict[str, _PrincipalEntry]


class Credentials:
    """The principals by token. It keeps digests, never the tokens."""

    def __init__(self, by_digest: Mapping[str, Principal]) -> None:
        self._by_digest = dict(by_digest)

    @classmethod
    def read(cls, path: Path) -> "Credentials":
        """Read a file of principals.

        Raises:
            MemoryStoreError: the file cannot be read, or an entry is invalid; it names the entry.
        """
        try:
            file = msgspec.convert(tomllib.loads(path.read_text()), _PrincipalsFile)
        except (OSError, ValueError) as error:  # errors of both libraries are ValueErrors
            raise MemoryStoreError(f"{path}: {error}") from error
        found: dict[str, Principal] = {}
        for name, entry in file.principals.items():
            if name == OWNER.id or name.startswith("pod:"):
                # It could read and erase items of the file's owner or of a pod.
                raise MemoryStoreError(f"{path}: the name {name} is reserved")
            digest = _digest(path, name, entry)
            if digest in found:
                raise MemoryStoreError(f"{path}: {name} has the same token as {found[digest].id}")
            projects = _projects(path, name, entry.projects)
            try:
                found[digest] = Principal(name, projects, entry.organization or None)
            except ValueError as error:
                raise MemoryStoreError(f"{path}: {name!r}: {error}") from error
        return cls(found)

    def principal_of(self, token: str) -> Principal | None:
        """Return the principal of a token, looked up by digest so that timing reveals nothing."""
        return self._by_digest.get(hashlib.sha256(token.encode()).hexdigest())


def _digest(path: Path, name: str, entry: _PrincipalEntry) -> str:
    names = ("token", "token_sha256", "token_file", "token_env")
    given: dict[str, Any] = {key: value for key in names if (value := getattr(entry, key))}
    if len(given) != 1:
        raise MemoryStoreError(f"{path}: {name} needs exactly one of {', '.join(names)}")
    if entry.token_sha256:
        if not _DIGEST.fullmatch(entry.token_sha256):
            raise MemoryStoreError(f"{path}: {name}: token_sha256 must be 64 characters of 0-9a-f")
        return entry.token_sha256
    token = entry.token or ""
    if entry.token_env:
        if entry.token_env not in os.environ:
            raise MemoryStoreError(f"{path}: {name}: the variable {entry.token_env} is not set")
        token = os.environ[entry.token_env]
    elif entry.token_file:
        try:
            token = (path.parent / entry.token_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise MemoryStoreError(f"{path}: {name}: {error}") from error
    if not _TOKEN.fullmatch(token):
        raise MemoryStoreError(
            f"{path}: {name}: the token is empty or has characters outside A-Za-z0-9._~-"
        )
    return hashlib.sha256(token.encode()).hexdigest()


def _projects(path: Path, name: str, projects: list[str] | str) -> frozenset[str] | None:
    if projects == "*":
        return None
    if isinstance(projects, str):
        raise MemoryStoreError(f'{path}: {name}: projects is a list, or "*" for all projects')
    return frozenset(projects)
