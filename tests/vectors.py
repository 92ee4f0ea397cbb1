"""Loader of the specification's test vectors; `spec/vectors/README.md` defines the format."""

import json
from pathlib import Path
from typing import Any, NamedTuple

SPEC = Path(__file__).parent.parent / "spec"


class Vector(NamedTuple):
    """One text that an implementation must accept or refuse."""

    name: str
    rule: str
    input: bytes
    canonical: bytes
    path: str | None

    def __str__(self) -> str:
        return self.name


def load(folder: str) -> list[Vector]:
    return [read(path) for path in sorted((SPEC / "vectors" / folder).glob("*.json"))]


def read(path: Path) -> Vector:
    vector: dict[str, Any] = json.loads(path.read_text())
    data = join(vector["input"])
    canonical = join(vector["canonical"]) if "canonical" in vector else data
    return Vector(path.stem, vector["rule"], data, canonical, vector.get("path"))


def join(parts: Any) -> bytes:
    if isinstance(parts, str):
        return parts.encode()
    return b"".join(map(part_bytes, parts))


def part_bytes(part: Any) -> bytes:
    if isinstance(part, str):
        return part.encode()
    if "hex" in part:
        return bytes.fromhex(part["hex"])
    return bytes(part["repeat"].encode() * part["times"])
