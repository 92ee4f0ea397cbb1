"""What callers ask: a memory to keep (`Draft`) and a pack to compile (`PackRequest`).

They are the tools' input schemas at the same time, so wire names are used as they are.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NamedTuple, TypedDict, TypeVar

import msgspec

from mcpp_agents.memory.errors import InvalidMemory
from mcpp_agents.memory.redaction import redact, redact_all
from mcpp_agents.memory.vocabulary import RELATIONSHIPS, Intent, LayerName

# Bounds keep one caller from filling the file, and a pack from filling a model's window.
MAX_TITLE_CHARS: Final = 300
MAX_CONTENT_CHARS: Final = 32_768
MAX_GOAL_CHARS: Final = 32_768
MAX_LIST: Final = 64
MAX_WORD_CHARS: Final = 256
MAX_ADDRESS_CHARS: Final = 2_048
_MAX_NUMBER: Final = 2**53

# Only what memory itself has heard comes from there.
BUS_SCHEME: Final = "mcpp://"

# Ids, which are what they are: two that were rewritten could become one.
_SCOPE: Final = ("domain", "project", "agent_id")

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_TEXT = re.compile(r"[\x00\ud800-\udfff]")


T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


def _says(text: str) -> Any:
    return msgspec.Meta(description=text)


class Relation(NamedTuple):
    """What a new item says of an older one."""

    relationship: str
    target: str


class MemoryDraft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A memory as its author hands it in."""

    title: Annotated[str, _says("One line by which to recognise it")]
    content: Annotated[str, _says("What future agents should not have to relearn")]
    kind: Annotated[str, _says("decision, gotcha, plan, task, note, …; it decides the facet")]
    domain: Annotated[str | None, _says("Category")] = None
    project: Annotated[str | None, _says("Project that shares it; else it is private")] = None
    agent_id: Annotated[str | None, _says("Agent in whose diary it belongs")] = None
    tags: Annotated[tuple[str, ...], _says("Labels")] = ()
    related_to: Annotated[
        tuple[str, ...],
        _says("Ids of memories, typed by a prefix: supersedes:, contradicts:, requires:, …"),
    ] = ()
    retrieval_keys: Annotated[tuple[str, ...], _says("Other words to find it by")] = ()
    source: Annotated[str | None, _says("Where it comes from")] = None
    url: Annotated[str | None, _says("Address of the source")] = None
    valid_at: Annotated[str | None, _says("When it became true, ISO 8601")] = None
    idempotency_key: Annotated[str | None, _says("The same key stores only once")] = None

    @property
    def relations(self) -> tuple[Relation, ...]:
        """`related_to`, parsed; a bare id is plain `related_to`."""
        return tuple(dict.fromkeys(_relation(text) for text in self.related_to))

    def redacted(self) -> "MemoryDraft":
        """The same without secrets in its texts: an equal one where there are none."""
        return _redacted(self)

    def check(self) -> None:
        """Raises InvalidMemory, naming the first field that breaks a rule."""
        _check_text("title", self.title, MAX_TITLE_CHARS)
        _check_text("content", self.content, MAX_CONTENT_CHARS)
        if not _KIND.fullmatch(self.kind):
            raise InvalidMemory("kind must be 1 to 32 of a-z, 0-9, _ and -, a letter first")
        for name in ("kind", *_SCOPE):
            _check_id(name, getattr(self, name))
        # Python lets any character stand between a day and an hour.
        for name in ("idempotency_key", "valid_at"):
            _check_word(name, getattr(self, name))
        for name in ("source", "url"):
            _check_word(name, getattr(self, name), MAX_ADDRESS_CHARS)
        for name in ("tags", "related_to", "retrieval_keys"):
            words: tuple[str, ...] = getattr(self, name)
            if len(words) > MAX_LIST:
                raise InvalidMemory(f"{name} holds at most {MAX_LIST} entries")
            for word in words:
                _check_word(name, word)
        if self.valid_at is not None:
            seconds_of(self.valid_at)

    def check_source(self) -> None:
        """M-34: where an item was heard is not for its author to say.

        Raises InvalidMemory.
        """
        if (self.source or "").strip().casefold().startswith(BUS_SCHEME):
            raise InvalidMemory(
                f"source must not begin with {BUS_SCHEME}, as what was overheard does"
            )


class PackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an agent is about to do, and how much it wants to know."""

    goal: Annotated[str, _says("What the agent is trying to accomplish")]
    intent: Annotated[Intent, _says("Mode of the goal; it shapes what is stressed")] = "build"
    layer: Annotated[LayerName, _says("Depth: session start, working set, or broad")] = "recall"
    domain: Annotated[str | None, _says("Only this category")] = None
    project: Annotated[str | None, _says("Only this project, beside private items")] = None
    agent_id: Annotated[str | None, _says("Agent whose diary is included")] = None
    limit: Annotated[float, _says("Most items in all, clamped to 1–50")] = 24
    include_related: Annotated[bool, _says("With items one relation away")] = True
    related_limit: Annotated[float, _says("Most related items for each item")] = 3

    def redacted(self) -> "PackRequest":
        """The same without secrets in its goal."""
        return _redacted(self)

    def check(self) -> None:
        """Raises InvalidMemory, naming the first field that breaks a rule."""
        _check_text("goal", self.goal, MAX_GOAL_CHARS)
        for name in _SCOPE:
            _check_id(name, getattr(self, name))


class DraftFields(TypedDict, total=False):
    """The fields of a Draft that may be left out, as keyword arguments."""

    domain: str | None
    project: str | None
    agent_id: str | None
    tags: Sequence[str]
    related_to: Sequence[str]
    retrieval_keys: Sequence[str]
    source: str | None
    url: str | None
    valid_at: str | None
    idempotency_key: str | None


class ScopeFields(TypedDict, total=False):
    """Where to look, as keyword arguments."""

    domain: str | None
    project: str | None
    agent_id: str | None


class PackFields(ScopeFields, total=False):
    """The fields of a PackRequest that may be left out, as keyword arguments."""

    intent: Intent
    layer: LayerName
    limit: float
    include_related: bool
    related_limit: float


class ForgetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A memory to erase."""

    id: Annotated[str, _says("Id of the memory")]


def read(fields: object, type: type[T]) -> T:
    """Arguments as the value object that they describe; null is as good as absent.

    Raises:
        InvalidMemory: one is missing, unknown or of a wrong type.
    """
    if isinstance(fields, Mapping):
        fields = {name: _number(value) for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(fields, type)
    except msgspec.ValidationError as error:
        raise InvalidMemory(str(error)) from None


def seconds_of(moment: str) -> float:
    """An ISO 8601 date or time as seconds since 1970; without an offset it is UTC."""
    try:
        parsed = datetime.fromisoformat(moment)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidMemory("valid_at must be an ISO 8601 date or time") from None


def moment_of(seconds: float) -> str:
    """Seconds since 1970 as ISO 8601, in UTC."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def digest_key(key: str) -> str:
    """An idempotency key as it is stored: whatever it was made of, it only has to be the same."""
    return hashlib.sha256(key.encode()).hexdigest()


def clean(text: str) -> str:
    """The text without the characters that no field may hold."""
    return _NOT_TEXT.sub("", text)


def _number(value: Any) -> Any:
    """A whole number as far as others can count, which is more than any argument may be."""
    return max(-_MAX_NUMBER, min(value, _MAX_NUMBER)) if type(value) is int else value


def _redacted(value: S) -> S:
    fields = msgspec.structs.asdict(value)
    texts = {name: redact_all(text) for name, text in fields.items() if name not in _SCOPE}
    return msgspec.structs.replace(value, **texts)


def _relation(text: str) -> Relation:
    relationship, separator, target = text.partition(":")
    if separator and relationship in RELATIONSHIPS:
        return Relation(relationship, target)
    return Relation("related_to", text)


def _check_text(name: str, text: str, max_chars: int) -> None:
    if not text.strip():
        raise InvalidMemory(f"{name} must not be empty")
    if len(text) > max_chars:
        raise InvalidMemory(f"{name} holds at most {max_chars} characters")
    if _NOT_TEXT.search(text):
        raise InvalidMemory(f"{name} must be text, without NUL and lone surrogates")


def _check_word(name: str, word: str | None, max_chars: int = MAX_WORD_CHARS) -> None:
    if word is None:
        return
    if not word.strip() or len(word) > max_chars:
        raise InvalidMemory(f"{name} must have 1 to {max_chars} characters")
    if _CONTROL.search(word) or _NOT_TEXT.search(word):
        raise InvalidMemory(f"{name} must be one line of text")


def _check_id(name: str, word: str | None) -> None:
    _check_word(name, word)
    if word is not None and redact(word) != word:
        raise InvalidMemory(f"{name} must not be a secret, and looks like one")
