"""Where a mirrored envelope comes from: the member `origin`, and ids in the other pod (P-90)."""

import hashlib
import re
from typing import Any, Final, NamedTuple

from mcpp import Envelope

_MAX_ID_LENGTH: Final = 128
_REFERENCE: Final = re.compile(r"mcpp://([A-Za-z0-9_][A-Za-z0-9._-]{0,63})/(.+)")


class Reference(NamedTuple):
    """An envelope or a context of a pod: `mcpp://POD/ID`."""

    pod: str
    id: str

    @classmethod
    def parse(cls, text: str) -> "Reference | None":
        """Return the reference in a text, or None if the text is a plain id."""
        found = _REFERENCE.fullmatch(text)
        return None if found is None else cls(found[1], found[2])

    def __str__(self) -> str:
        return f"mcpp://{self.pod}/{self.id}"


class MirrorOrigin(NamedTuple):
    """Who sent an envelope first, to whom, and the pods in which it has been since."""

    sender: str
    to: tuple[str, ...]
    path: tuple[Reference, ...]  # the original first

    @classmethod
    def of(cls, envelope: Envelope) -> "MirrorOrigin | None":
        """Return the origin that an envelope names, or None. Its sender may have made it up."""
        member = envelope.extra.get("origin")
        if not isinstance(member, dict) or not isinstance(member.get("path"), list):
            return None
        path = [Reference.parse(each) for each in member["path"] if isinstance(each, str)]
        known = tuple(each for each in path if each is not None)
        sender, to = member.get("from"), member.get("to", [])
        if not known or len(known) != len(member["path"]) or not isinstance(sender, str):
            return None
        names = to if isinstance(to, list) else []
        return cls(sender, tuple(name for name in names if isinstance(name, str)), known)

    def to_json(self) -> dict[str, Any]:
        """Return the member `origin`."""
        to = {"to": list(self.to)} if self.to else {}
        return {"from": self.sender, **to, "path": [str(each) for each in self.path]}


def mirrored_id(reference: Reference) -> str:
    """Return the id that an envelope or a context has in another pod: always the same one."""
    found = f"{reference.pod}~{reference.id}"
    if len(found) <= _MAX_ID_LENGTH:
        return found
    return f"{reference.pod}~{hashlib.sha256(reference.id.encode()).hexdigest()[:48]}"
