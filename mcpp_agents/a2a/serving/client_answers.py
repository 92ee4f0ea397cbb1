"""What a client answers while a task waits for it: to a proposal, or to a question of the pod."""

import re
from typing import Any, Final

import anyio
import msgspec

_DECLINED: Final = ("decline", "cancel")
_approves = re.compile(r"\s*(?:approve|approved|yes|ok)\W*", re.IGNORECASE).fullmatch
_rejects = re.compile(
    r"\s*(?:reject|rejected|no)\b[\s:,.-]*(.*)", re.IGNORECASE | re.DOTALL
).fullmatch


class ClientAnswer(msgspec.Struct, frozen=True):
    """What a client sends while a task waits for it: a text, and perhaps a JSON object."""

    text: str
    data: dict[str, Any] | None = None

    @property
    def approves(self) -> bool:
        """Whether it approves a proposal."""
        return _approves(self.text) is not None

    @property
    def rejection(self) -> str | None:
        """The reason for which it rejects a proposal, perhaps empty; None if it does not."""
        found = _rejects(self.text)
        return None if found is None else found[1].strip()


class ClientQuestion:
    """A question of the pod that waits for a client."""

    def __init__(self, params: dict[str, Any]) -> None:
        self._schema = params.get("requestedSchema")
        self._given: ClientAnswer | None = None
        self._answered = anyio.Event()

    def answer(self, given: ClientAnswer) -> None:
        """Give the answer."""
        self._given = given
        self._answered.set()

    async def wait(self) -> dict[str, Any]:
        """Return the answer in MCP's form."""
        await self._answered.wait()
        assert self._given is not None
        if self._given.data is not None:
            return {"action": "accept", "content": self._given.data}
        if self._given.text.strip().lower() in _DECLINED:
            return {"action": "decline"}
        return {"action": "accept", "content": _content(self._schema, self._given.text)}


def _content(schema: Any, text: str) -> dict[str, Any]:
    """Return a text as the object that a schema describes: its only property, or JSON."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or len(properties) != 1:
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            return {"answer": text}
        return value if isinstance(value, dict) else {"answer": text}
    ((name, described),) = properties.items()
    kind = described.get("type") if isinstance(described, dict) else None
    if kind in ("number", "integer", "boolean"):
        try:
            return {name: msgspec.json.decode(text.strip().lower())}
        except msgspec.DecodeError:
            return {name: text}
    return {name: text}
