"""What a participant's model is shown at a point of the log, and proof of what it was shown.

A model agent and its observers build prompts with the same `ModelPrompt`, so that
they cannot differ. An agent attaches a `PromptRecord` to its answer: where in the log the prompt
began and ended, and its digest. `recompute` builds the same prompts again from the log.

Other participants' messages that arrive while a question is answered get a share of the prompt, and
the question is pinned, so that none of them can push it out.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from mcpp.prompts.attached import PictureChoice
from mcpp.prompts.builder import PromptBuilder
from mcpp.prompts.folding import ContextSummary
from mcpp.prompts.prompt import Prompt
from mcpp.protocol.envelope import Attachment, Envelope
from mcpp.tokens import DEFAULT_IMAGE_TOKENS, estimate
from mcpp.transient.collapsing.cache_policy import CachePolicy

__all__ = [
    "PROMPT_TOKENS",
    "Collapse",
    "ModelPrompt",
    "PictureChoice",
    "PromptRecord",
    "Recomputed",
    "is_system_of",
    "recompute",
    "recorded_pictures",
]

Collapse: TypeAlias = Literal["always", "cache", "never"]
# T-28: a collapse that saves nothing in any further call is never worth its price.
_CACHE_POLICIES: Final[dict[Collapse, CachePolicy | None]] = {
    "always": None,
    "cache": CachePolicy(),
    "never": CachePolicy(further_calls=0),
}

PROMPT_TOKENS: Final = 60_000
"""The token budget of a prompt, unless another is given."""

# One part in so many of the prompt is for messages that arrive while a question is answered.
_MEANWHILE_SHARE: Final = 4
# Of an encoded record. The metadata of a context, which holds it, has 2,048 with all the rest.
_MAX_RECORD_BYTES: Final = 1400
# Characters of the digest of an earlier prompt: enough to detect a difference.
_SHORT_DIGEST: Final = 16
_MAX_MISSING: Final = 16


class PromptRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which prompt produced an answer: its digest, and the ids of envelopes between which it lies.

    The prompt is that of `budget` tokens for the envelopes from `first` to `at`. The question was
    taken up after `started`; what came later had only a share of the budget. `earlier` are the
    prompts of the same question before this one, as `DIGEST@ID` with a short digest, as many as
    there was room for. `system` is the digest of the agent's instructions and of what it remembers
    (M-48), and `collapse` says when consumed results were collapsed (T-28). `summaries` is the
    number of summaries of open contexts in it (M-55): the log does not hold these, so such a prompt
    cannot be built again from the log. `missing` are the short hashes of attached pictures that the
    agent could not fetch: those are named only.
    """

    digest: str
    budget: int
    first: str
    started: str
    at: str
    question: str | None = None
    system: str | None = None
    collapse: Collapse = "cache"
    summaries: int = 0
    earlier: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


class ModelPrompt:
    """The prompt of one participant's model, extended envelope by envelope. Owns its builder."""

    def __init__(
        self,
        viewer: str,
        log: Sequence[Envelope],
        *,
        question: Envelope | None = None,
        token_budget: int = PROMPT_TOKENS,
        system: str = "",
        collapse: Collapse = "cache",
        summaries: Iterable[ContextSummary] = (),
        remembered: str = "",
        pictures: Mapping[str, bytes] | None = None,
    ) -> None:
        """Begin with the log up to now.

        Args:
            viewer: the participant whose model reads it.
            log: envelopes in the log's order.
            question: what the model is to answer: pinned, and added if the log has it no longer.
            token_budget: the size of the prompt.
            system: the agent's instructions for the model.
            collapse: when consumed results are collapsed (T-28).
            summaries: summaries of open contexts, from a source that the viewer trusts.
            remembered: quoted text from the agent's memory.
            pictures: the content of attached pictures, by hash; `PictureChoice` says of which.
                What is added to it later counts for envelopes that are added after that.
        """
        # A question that would fill the prompt is not pinned, so that it is shortened.
        is_pinned = question is not None and _tokens(question) <= token_budget // 2
        self._viewer = viewer
        self._question = question
        self._token_budget = token_budget
        # What the log does not hold; the record has its digest.
        self._system = "\n\n".join(filter(None, (system, remembered)))
        self._collapse: Collapse = collapse
        self._pictures = {} if pictures is None else pictures
        self._shown: dict[str, bytes] = {}
        self._missing: list[str] = []
        self._cost = 0
        self._choice = PictureChoice(viewer)
        self._show(self._choice.begin(log, question))
        self._builder = PromptBuilder(
            viewer,
            filter=self._has_room,
            contexts="fold",
            token_budget=token_budget,
            pins=[question.id] if question is not None and is_pinned else (),
            system=system,
            cache=_CACHE_POLICIES[collapse],
            summaries=summaries,
            remembered=remembered,
            contents=self._shown,
        )
        self._summaries = 0
        self._earlier: list[tuple[str, str]] = []
        self._first = self._last = ""
        self._room = math.inf
        for envelope in log:
            self._add(envelope)
        self._started = self._last
        if question is not None:
            self._builder.add(question)  # unless it is among the others
            self._room = token_budget // _MEANWHILE_SHARE

    def add(self, envelope: Envelope) -> None:
        """Add the next envelope of the log."""
        self._show(self._choice.add(envelope))
        if envelope.sender != self._viewer:
            images = sum(each.hash in self._shown for each in envelope.attachments)
            self._cost = _tokens(envelope) + images * DEFAULT_IMAGE_TOKENS
        self._add(envelope)

    def _add(self, envelope: Envelope) -> None:
        self._first = self._first or envelope.id
        self._last = envelope.id
        self._builder.add(envelope)

    def _show(self, chosen: Iterable[Attachment]) -> None:
        for each in chosen:
            content = self._pictures.get(each.hash)
            if content is None:
                self._missing.append(each.hash[:_SHORT_DIGEST])
            else:
                self._shown[each.hash] = content

    def build(self, previous: Prompt | None = None) -> Prompt:
        """Return the prompt for the envelopes so far. Raises BudgetError."""
        return self._builder.build(previous=previous)

    def record(self, prompt: Prompt) -> PromptRecord:
        """Return the record of the prompt that was just built for a call of the model."""
        self._summaries = max(self._summaries, prompt.summaries)
        record = PromptRecord(
            digest=prompt.digest,
            budget=self._token_budget,
            first=self._first,
            started=self._started,
            at=self._last,
            question=None if self._question is None else self._question.id,
            system=_digest(self._system.encode()) if self._system else None,
            collapse=self._collapse,
            summaries=self._summaries,
            missing=tuple(self._missing[-_MAX_MISSING:]),
        )
        fitting = record
        for count in range(1, len(self._earlier) + 1):
            points = [f"{digest[:_SHORT_DIGEST]}@{at}" for at, digest in self._earlier[-count:]]
            longer = msgspec.structs.replace(record, earlier=tuple(points))
            if len(msgspec.json.encode(longer)) > _MAX_RECORD_BYTES:
                break
            fitting = longer
        self._earlier.append((self._last, prompt.digest))
        return fitting

    def _has_room(self, envelope: Envelope) -> bool:
        if envelope.sender == self._viewer or self._room == math.inf:
            return True
        has_room = self._cost <= self._room
        self._room -= self._cost if has_room else 0
        return has_room


class Recomputed(NamedTuple):
    """A prompt that was built again: of the envelopes up to `at`."""

    at: str
    prompt: Prompt
    recorded: str  # the digest in the record, possibly shortened

    @property
    def matches(self) -> bool:
        """Whether it is the prompt that was recorded."""
        return self.prompt.digest.startswith(self.recorded)


def recorded_pictures(
    record: PromptRecord,
    viewer: str,
    envelopes: Iterable[Envelope],
    *,
    question: Envelope | None = None,
) -> list[Attachment]:
    """Return the attached pictures that the prompts of a record showed; `recompute` needs them."""
    log = iter(envelopes)
    choice = PictureChoice(viewer)
    chosen = choice.begin(_until(log, record.started), question)
    for envelope in log:
        chosen += choice.add(envelope)
    return [each for each in chosen if each.hash[:_SHORT_DIGEST] not in record.missing]


def recompute(
    record: PromptRecord,
    viewer: str,
    envelopes: Iterable[Envelope],
    *,
    question: Envelope | None = None,
    system: str = "",
    pictures: Mapping[str, bytes] | None = None,
) -> Iterator[Recomputed]:
    """Build the prompts of a record again, from the envelopes from its `first` to its `at`.

    Args:
        record: of the last prompt, and of those before.
        viewer: the participant that recorded it.
        envelopes: in the log's order.
        question: the envelope that the record names.
        system: the agent's instructions for the model.
        pictures: the contents of `recorded_pictures`, by hash.
    """
    points = {at: digest for digest, _, at in (one.partition("@") for one in record.earlier)}
    points[record.at] = record.digest
    log = iter(envelopes)
    model_prompt = ModelPrompt(
        viewer,
        _until(log, record.started),
        question=question,
        token_budget=record.budget,
        system=system,
        collapse=record.collapse,
        pictures=pictures,
    )
    if record.started in points:
        yield Recomputed(record.started, model_prompt.build(), points[record.started])
    for envelope in log:
        model_prompt.add(envelope)
        if envelope.id in points:
            yield Recomputed(envelope.id, model_prompt.build(), points[envelope.id])


def _until(log: Iterator[Envelope], id: str) -> list[Envelope]:
    before = []
    for envelope in log:
        before.append(envelope)
        if envelope.id == id:
            break
    return before


def is_system_of(record: PromptRecord, system: str) -> bool:
    """Return whether these are the agent's instructions that a record was made with."""
    return record.system == (_digest(system.encode()) if system else None)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def _tokens(envelope: Envelope) -> int:
    return estimate(bytes(envelope.raw_payload).decode())
