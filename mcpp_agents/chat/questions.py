"""Questions that other participants put to a person, answered by typing (P-61)."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from mcpp import Envelope, Kind, McppError, Message, Pod, kinds
from mcpp.protocol import rpc
from mcpp.protocol.rpc import Failure
from mcpp_agents.cli.display import one_line

_ELICIT: Final = "elicitation/create"
_KIND: Final = str(Kind(kinds.REQUEST, _ELICIT))
_MAX_OPEN: Final = 50
_WORDS: Final = {"yes": True, "true": True, "no": False, "false": False}


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question without an answer: its envelope, what it says, and the fields that it asks for."""

    envelope: Envelope
    message: str
    url: str | None
    fields: Mapping[str, Mapping[str, Any]]
    required: tuple[str, ...]

    @classmethod
    def read(cls, envelope: Envelope) -> "OpenQuestion":
        """Read a request for an elicitation. Raises Failure."""
        params = rpc.read_request(envelope).params
        schema = params.get("requestedSchema")
        given = schema if isinstance(schema, dict) else {}
        properties, required = given.get("properties"), given.get("required")
        url = params.get("url")
        return cls(
            envelope,
            str(params.get("message", "")),
            url if params.get("mode") == "url" and isinstance(url, str) else None,
            {
                name: part if isinstance(part, dict) else {}
                for name, part in (properties if isinstance(properties, dict) else {}).items()
            },
            tuple(name for name in (required if isinstance(required, list) else ())),
        )

    def describe(self, number: int) -> str:
        """Return the question and how to answer it, as lines."""
        asked = one_line(self.message, 1000)
        lines = [f"[{number}] {self.envelope.sender} asks: {asked}"]
        if self.url is not None:
            lines.append(f"    open {one_line(self.url)} if you trust it, then: /answer {number}")
        for name, part in self.fields.items():
            note = " (required)" if name in self.required else ""
            hint = part.get("description") or part.get("title") or ""
            options = ", ".join(_options(part))
            details = " — ".join(filter(None, (one_line(str(hint)), options)))
            lines.append(f"    {one_line(name, 80)}: {_type(part)}{note} {details}".rstrip())
        if self.url is None:
            example = " ".join(f"{name}=…" for name in list(self.fields)[:3])
            lines.append(f"    /answer {number} {example} or /decline {number}")
        return "\n".join(lines)

    def read_answer(self, text: str) -> dict[str, Any]:
        """Return the content of a typed answer: pairs, a JSON object, or the only value.

        Raises McppError for what the question does not allow.
        """
        if self.url is not None:
            return {}
        content = {
            name: _convert(name, value, self.fields.get(name, {}))
            for name, value in self._pairs(text).items()
        }
        for name, part in self.fields.items():
            if name not in content and "default" in part:
                content[name] = part["default"]
        missing = [name for name in self.required if name not in content]
        if missing:
            raise McppError(f"missing: {', '.join(missing)}")
        return content

    def _pairs(self, text: str) -> dict[str, Any]:
        if text.startswith("{"):
            try:
                return msgspec.json.decode(text, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise McppError(f"not a JSON object: {error}") from None
        if len(self.fields) == 1:
            [name] = self.fields
            return {name: text.removeprefix(f"{name}=").strip("\"'")} if text else {}
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise McppError(str(error)) from None
        pairs = dict(word.partition("=")[::2] for word in words)
        unknown = [name for name in pairs if name not in self.fields]
        if unknown:
            raise McppError(f"unknown: {', '.join(unknown)}; write name=value")
        return pairs


@dataclass(slots=True)
class OpenQuestions:
    """The questions to this person. Owns those that are not answered or cancelled."""

    pod: Pod
    _open: dict[str, OpenQuestion] = field(default_factory=dict)

    def observe(self, message: Message) -> OpenQuestion | None:
        """Process a message; return the question that it is."""
        if message.kind == _KIND and message.to == (self.pod.me,) and not message.replayed:
            try:
                question = OpenQuestion.read(message.envelope)
            except Failure:
                return None
            self._open[message.id] = question
            if len(self._open) > _MAX_OPEN:
                del self._open[next(iter(self._open))]
            return question
        known = self._open.get(message.correlation_id or "")
        if known is not None:
            is_cancelled = (
                message.kind == rpc.CANCELLED_KIND and message.sender == known.envelope.sender
            )
            if is_cancelled or message.sender == self.pod.me:
                del self._open[known.envelope.id]
        return None

    async def accept(self, id: str, text: str) -> None:
        """Answer a question with what was typed. Raises McppError."""
        question = self._find(id)
        await self._respond(
            question, {"action": "accept", "content": question.read_answer(text.strip())}
        )

    async def decline(self, id: str) -> None:
        """Decline to answer a question. Raises McppError."""
        await self._respond(self._find(id), {"action": "decline"})

    def _find(self, id: str) -> OpenQuestion:
        if id not in self._open:
            raise McppError("that is not an open question")
        return self._open[id]

    async def _respond(self, question: OpenQuestion, result: dict[str, Any]) -> None:
        asked = question.envelope
        await self.pod.send(
            str(Kind(kinds.RESPONSE, _ELICIT)),
            rpc.response(rpc.request_id(asked), result),
            to=asked.sender,
            correlation_id=asked.id,
            context=None if asked.context is None else asked.context.id,
        )


def _type(part: Mapping[str, Any]) -> str:
    return {"boolean": "yes or no", "array": "several of", "string": "text"}.get(
        str(part.get("type")), str(part.get("type", "text"))
    )


def _options(part: Mapping[str, Any]) -> list[str]:
    items = part.get("items")
    source = items if isinstance(items, dict) else part
    if isinstance(source.get("enum"), list):
        return [str(value) for value in source["enum"]]
    titled = source.get("oneOf") or source.get("anyOf")
    listed = titled if isinstance(titled, list) else []
    return [str(one.get("const")) for one in listed if isinstance(one, dict)]


def _convert(name: str, value: Any, part: Mapping[str, Any]) -> Any:
    """Return a typed value in the type of its field. Raises McppError."""
    if not isinstance(value, str):
        return value  # from JSON
    options = _options(part)
    kind = part.get("type")
    if kind == "boolean":
        if value.lower() not in _WORDS:
            raise McppError(f"{name}: yes or no")
        return _WORDS[value.lower()]
    if kind in ("integer", "number"):
        try:
            return int(value) if kind == "integer" else float(value)
        except ValueError:
            raise McppError(f"{name}: not a number") from None
    chosen = value.split(",") if kind == "array" else [value]
    if options and not set(chosen) <= set(options):
        raise McppError(f"{name}: one of {', '.join(options)}")
    return chosen if kind == "array" else value
