"""Request types: a memory to store (`MemoryDraft`), a pack to compile, an item to erase.

They also define the input schemas of the tools, so their fields have the wire names.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any, Final, NamedTuple, Self, TypedDict, TypeVar

import msgspec

from mcpp import Envelope
from mcpp.payloads import Erased
from mcpp_agents.memory.errors import InvalidMemory
from mcpp_agents.memory.redaction import WITHHELD, is_password_name, redact, redact_all
from mcpp_agents.memory.vocabulary import DEFAULT_KIND, RELATIONSHIPS, Intent, LayerName

# Limits that keep one caller from filling the file, and a pack from filling a model's context.
MAX_TITLE_CHARS: Final = 300
MAX_CONTENT_CHARS: Final = 32_768
MAX_GOAL_CHARS: Final = 32_768
MAX_LIST: Final = 64
MAX_WORD_CHARS: Final = 256
MAX_ADDRESS_CHARS: Final = 2_048
MAX_METADATA_BYTES: Final = 8_192
# A pack nests metadata in itself and in a message, and an envelope ends at 64 levels (E-03).
MAX_METADATA_DEPTH: Final = 16
_MAX_NUMBER_CHARS: Final = 64  # in an envelope (E-04)
DEFAULT_TOKEN_BUDGET: Final = 4_000
MIN_TOKEN_BUDGET: Final = 200  # the heading, the notes and one title
_MAX_NUMBER: Final = 2**53

# Names of metadata that memory itself sets, and callers must not.
RESERVED_METADATA: Final = frozenset(
    (
        *("author", "domain", "agent_id", "tags", "task_ids", "active_task", "words", "cosine"),
        *("contradicted_by", "truncated", "pod", "context", "context_type", "lineage"),
        *("envelopes", "participants", "summarized_by", "rolling", "began", "last_erasure"),
    )
)

# Sources with this scheme are set by memory itself, for items recorded from a pod (M-34).
BUS_SCHEME: Final = "mcpp://"

# Ids are stored unchanged: two ids could become equal if they were redacted (M-08).
_SCOPE: Final = ("domain", "project", "agent_id")

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_TEXT = re.compile(r"[\x00\ud800-\udfff]")


T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)


def _doc(text: str) -> Any:
    return msgspec.Meta(description=text)


class Relation(NamedTuple):
    """A typed reference from a new item to an existing one."""

    relationship: str
    target: str


class MemoryDraft(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A memory as submitted by its author."""

    title: Annotated[str, _doc("One line that identifies it")]
    content: Annotated[str, _doc("What future agents should not have to relearn")]
    kind: Annotated[str, _doc("decision, gotcha, plan, task, claim, …; determines the facet")] = (
        DEFAULT_KIND
    )
    domain: Annotated[str | None, _doc("Category")] = None
    project: Annotated[str | None, _doc("Project to share it with; private if omitted")] = None
    agent_id: Annotated[str | None, _doc("Agent whose diary it belongs to")] = None
    tags: Annotated[tuple[str, ...], _doc("Labels")] = ()
    related_to: Annotated[
        tuple[str, ...],
        _doc("Ids of memories, typed by a prefix: supersedes:, contradicts:, requires:, …"),
    ] = ()
    retrieval_keys: Annotated[tuple[str, ...], _doc("Additional words to find it by")] = ()
    source: Annotated[str | None, _doc("Where it comes from")] = None
    url: Annotated[str | None, _doc("Address of the source")] = None
    valid_at: Annotated[str | None, _doc("When it became true, ISO 8601")] = None
    idempotency_key: Annotated[str | None, _doc("A repeated key stores only once")] = None
    task_ids: Annotated[tuple[str, ...], _doc("Tasks that it belongs to; it is found by them")] = ()
    active_task: Annotated[str | None, _doc("The task during which it was learned")] = None
    metadata: Annotated[dict[str, Any], _doc("Further facts, returned with the item")] = (
        msgspec.field(default_factory=dict)
    )

    @property
    def relations(self) -> tuple[Relation, ...]:
        """`related_to`, parsed; a bare id has the type `related_to`."""
        return tuple(dict.fromkeys(_relation(text) for text in self.related_to))

    def redacted(self) -> "MemoryDraft":
        """Return the draft with secrets replaced; it compares equal if there are none."""
        return _redacted(self)

    def check(self) -> None:
        """Validate the fields; raise InvalidMemory naming the first one that breaks a rule."""
        _check_text("title", self.title, MAX_TITLE_CHARS)
        _check_text("content", self.content, MAX_CONTENT_CHARS)
        if not _KIND.fullmatch(self.kind):
            raise InvalidMemory("kind must be 1 to 32 of a-z, 0-9, _ and -, a letter first")
        for name in ("kind", *_SCOPE):
            _check_id(name, getattr(self, name))
        # Python accepts any character between date and time.
        for name in ("idempotency_key", "valid_at", "active_task"):
            _check_word(name, getattr(self, name))
        for name in ("source", "url"):
            _check_word(name, getattr(self, name), MAX_ADDRESS_CHARS)
        for name in ("tags", "related_to", "retrieval_keys", "task_ids"):
            words: tuple[str, ...] = getattr(self, name)
            if len(words) > MAX_LIST:
                raise InvalidMemory(f"{name} holds at most {MAX_LIST} entries")
            for word in words:
                _check_word(name, word)
        if self.valid_at is not None:
            to_seconds(self.valid_at)
        _check_metadata(self.metadata)

    def check_source(self) -> None:
        """Raise InvalidMemory if the author claims a source on the bus (M-34)."""
        if (self.source or "").strip().casefold().startswith(BUS_SCHEME):
            raise InvalidMemory(
                f"source must not begin with {BUS_SCHEME}, which is reserved for items from a pod"
            )


class PackRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The goal of an agent, and the selection and size of the pack it wants."""

    goal: Annotated[str, _doc("What the agent is trying to accomplish")]
    intent: Annotated[Intent, _doc("Purpose of the goal; decides which facets are emphasized")] = (
        "build"
    )
    layer: Annotated[LayerName, _doc("Depth: session start, working set, or broad")] = "recall"
    domain: Annotated[str | None, _doc("Only this category")] = None
    project: Annotated[str | None, _doc("Only this project, besides private items")] = None
    agent_id: Annotated[str | None, _doc("Agent whose diary is included")] = None
    limit: Annotated[float, _doc("Maximum number of items, clamped to 1–50")] = 24
    include_related: Annotated[bool, _doc("Include items one relation away")] = True
    related_limit: Annotated[float, _doc("Maximum number of related items per item")] = 3
    markdown_token_budget: Annotated[
        float,
        _doc("Maximum tokens of the Markdown, at least 200; the items themselves are not affected"),
    ] = DEFAULT_TOKEN_BUDGET

    def redacted(self) -> "PackRequest":
        """Return the request with secrets in its goal replaced."""
        return _redacted(self)

    def check(self) -> None:
        """Validate the fields; raise InvalidMemory naming the first one that breaks a rule."""
        _check_text("goal", self.goal, MAX_GOAL_CHARS)
        for name in _SCOPE:
            _check_id(name, getattr(self, name))
        if not self.markdown_token_budget >= MIN_TOKEN_BUDGET:  # NaN is refused, too
            raise InvalidMemory(f"markdown_token_budget must be at least {MIN_TOKEN_BUDGET}")


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The goal of an artifact to be written from what is remembered."""

    goal: Annotated[str, _doc("What the artifact is about")]
    intent: Annotated[Intent, _doc("Purpose; decides which facets are expected")] = "research"
    domain: Annotated[str | None, _doc("Only this category")] = None
    project: Annotated[str | None, _doc("Only this project, besides private items")] = None
    agent_id: Annotated[str | None, _doc("Agent whose diary is included")] = None
    limit: Annotated[float, _doc("Maximum number of items, clamped to 1–50")] = 40
    markdown_token_budget: Annotated[
        float, _doc("Maximum tokens of the Markdown, at least 200")
    ] = DEFAULT_TOKEN_BUDGET

    def as_pack_request(self) -> PackRequest:
        """Return the request for the items of the plan."""
        return PackRequest(
            goal=self.goal,
            intent=self.intent,
            layer="deep_search",
            domain=self.domain,
            project=self.project,
            agent_id=self.agent_id,
            limit=self.limit,
            related_limit=0,
            markdown_token_budget=self.markdown_token_budget,
        )


class DraftFields(TypedDict, total=False):
    """The optional fields of a MemoryDraft, as keyword arguments."""

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
    task_ids: Sequence[str]
    active_task: str | None
    metadata: Mapping[str, Any]


class ScopeFields(TypedDict, total=False):
    """The fields that narrow a search, as keyword arguments."""

    domain: str | None
    project: str | None
    agent_id: str | None


class PackFields(ScopeFields, total=False):
    """The optional fields of a PackRequest, as keyword arguments."""

    intent: Intent
    layer: LayerName
    limit: float
    include_related: bool
    related_limit: float
    markdown_token_budget: float


class PlanFields(ScopeFields, total=False):
    """The optional fields of a PlanRequest, as keyword arguments."""

    intent: Intent
    limit: float
    markdown_token_budget: float


class ForgetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The id of a memory to erase."""

    id: Annotated[str, _doc("Id of the memory")]


class LogErasure(NamedTuple):
    """Entries that were erased from the log of a pod, and must vanish from memory (H-14)."""

    at: float  # when they were erased; this and `before` are Unix times
    context: str | None = None
    participant: str | None = None
    before: float | None = None  # only what is older

    @classmethod
    def of(cls, envelope: Envelope) -> Self:
        """Return the erasure that a `system/erased` announces."""
        erased = envelope.payload_as(Erased)
        return cls(to_seconds(envelope.ts), erased.context, erased.participant, erased.before)


def read(fields: object, type: type[T]) -> T:
    """Convert arguments to a request object; null counts as absent.

    Raises:
        InvalidMemory: an argument is missing, unknown or of the wrong type.
    """
    if isinstance(fields, Mapping):
        fields = {name: _number(value) for name, value in fields.items() if value is not None}
    try:
        return msgspec.convert(fields, type)
    except msgspec.ValidationError as error:
        raise InvalidMemory(str(error)) from None


def to_seconds(text: str) -> float:
    """Convert an ISO 8601 date or time to seconds since 1970; without an offset it is UTC."""
    try:
        parsed = datetime.fromisoformat(text)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise InvalidMemory("valid_at must be an ISO 8601 date or time") from None


def to_iso(seconds: float) -> str:
    """Convert seconds since 1970 to ISO 8601, in UTC."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def digest_key(key: str) -> str:
    """Return an idempotency key as it is stored; only equality matters."""
    return hashlib.sha256(key.encode()).hexdigest()


def clean(text: str) -> str:
    """Return the text without the characters that no field may contain."""
    return _NOT_TEXT.sub("", text)


def without_passwords(value: Any) -> Any:
    """Withhold members named as passwords: as JSON, not all of them look like one."""
    if isinstance(value, list):
        return [without_passwords(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: WITHHELD if each and is_password_name(name) else without_passwords(each)
        for name, each in value.items()
    }


def _number(value: Any) -> Any:
    """Clamp an integer to 53 bits, which exceeds every limit, so that conversion cannot fail."""
    return max(-_MAX_NUMBER, min(value, _MAX_NUMBER)) if type(value) is int else value


def _redacted(value: S) -> S:
    fields = msgspec.structs.asdict(value)
    texts = {name: redact_all(text) for name, text in fields.items() if name not in _SCOPE}
    if "metadata" in texts:
        texts["metadata"] = without_passwords(texts["metadata"])
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


def _check_metadata(metadata: Mapping[str, Any]) -> None:
    if len(metadata) > MAX_LIST:
        raise InvalidMemory(f"metadata holds at most {MAX_LIST} members")
    for name in metadata:
        _check_word("metadata", name)
        if name in RESERVED_METADATA:
            raise InvalidMemory(f"metadata must not contain {name}, which memory sets itself")
    try:
        encoded = msgspec.json.encode(metadata)
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise InvalidMemory("metadata must be JSON") from None
    if len(encoded) > MAX_METADATA_BYTES:
        raise InvalidMemory(f"metadata holds at most {MAX_METADATA_BYTES} bytes")
    if _NOT_TEXT.search(encoded.decode()) or b"\\u0000" in encoded:
        raise InvalidMemory("metadata must be text, without NUL and lone surrogates")
    level: list[Any] = [metadata]
    for _ in range(MAX_METADATA_DEPTH):
        members = (each.values() if isinstance(each, Mapping) else each for each in level)
        inner = list(chain.from_iterable(members))
        for one in inner:
            _check_json(one)
        level = [one for one in inner if isinstance(one, (Mapping, list, tuple))]
    if level:
        raise InvalidMemory(f"metadata nests at most {MAX_METADATA_DEPTH} levels")


def _check_json(value: object) -> None:
    """Raise InvalidMemory for a value that the encoder would turn into another one."""
    if isinstance(value, Mapping):
        if not all(isinstance(name, str) for name in value):
            raise InvalidMemory("metadata must be JSON: names are text")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidMemory(f"metadata must be JSON, which has no {value}")
    elif isinstance(value, int):
        if len(str(value)) > _MAX_NUMBER_CHARS:
            raise InvalidMemory(f"metadata holds numbers of at most {_MAX_NUMBER_CHARS} characters")
    elif not (value is None or isinstance(value, str | list | tuple)):
        raise InvalidMemory(f"metadata must be JSON, which has no {type(value).__name__}")


def _check_id(name: str, word: str | None) -> None:
    _check_word(name, word)
    if word is not None and redact(word) != word:
        raise InvalidMemory(f"{name} must not be a secret, and looks like one")
