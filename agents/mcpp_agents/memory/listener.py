"""The bus is the memory: what to keep of the contexts in a pod.

A `Listener` is fed a pod's envelopes in their order and answers with what to remember. It does no
I/O and knows no clock, so every rule (M-30 to M-34 of spec/memory.md) is testable without a pod.
What it keeps of a live context is bounded, and so is their number.
"""

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import msgspec

from mcpp import Envelope, Kind, kinds

from .drafts import Draft, clean, seconds_of
from .errors import InvalidMemory
from .redaction import redact
from .summary import Turn, headline, summarize

GATEWAY: Final = "system:gateway"

# The kind of memory that a conclusion becomes, by its context's type.
KINDS_BY_TYPE: Final = {
    "reasoning": "decision",
    "decision": "decision",
    "plan": "plan",
    "planning": "plan",
    "research": "fact",
    "workflow": "summary",
    "task": "summary",
}

_MAX_CONTEXTS: Final = 10_000
_MAX_TURNS: Final = 200
_MAX_TURN_CHARS: Final = 4_000
# More than is ever kept of one message; redaction takes some 20 ms for it.
_MAX_READ_CHARS: Final = 32_768
_MAX_ENVELOPES: Final = 50
_MAX_GOTCHAS: Final = 3
_MAX_CONTENT_CHARS: Final = 8_000

_LIKE_A_TURN: Final = re.compile(r"\s*[^\s:]+:\s")


@dataclass(frozen=True)
class Finding:
    """Something to remember, in the name of the participant that said it.

    The draft's content is what that participant concluded, if it did, and an extractive summary of
    the turns, if there are any.
    """

    draft: Draft
    author: str
    metadata: Mapping[str, Any]
    concluded: str = ""
    turns: tuple[Turn, ...] = ()

    def retold(self, summary: str, narrator: str) -> "Finding":
        """The same with another's summary of the turns, told in that one's name."""
        told = f"Summarised by {narrator}:\n{_in_ones_own_name(narrator, summary)}"
        draft = msgspec.structs.replace(self.draft, content=_content(self.concluded, told))
        return replace(self, draft=draft, metadata={**self.metadata, "summarized_by": narrator})


@dataclass
class _Episode:
    """A live context, as far as it was heard."""

    creator: str | None
    type: str | None = None
    parent: str | None = None
    placed: bool = False  # its creator itself put it below its parent
    off: bool = False
    concluded: bool = False
    turns: list[Turn] = field(default_factory=list)
    envelopes: list[str] = field(default_factory=list)
    participants: set[str] = field(default_factory=set)
    errors: dict[str, Envelope] = field(default_factory=dict)


class Ending(NamedTuple):
    """The end of a context, as the gateway tells of it."""

    context: str
    messages: int | None  # how many envelopes were in it


def ending(envelope: Envelope) -> Ending | None:
    """The end of a context, if an envelope tells of one."""
    if envelope.kind != kinds.CONTEXT or envelope.sender != GATEWAY:
        return None
    match envelope.payload:
        case {"event": "expired", "context": {"id": str(id)}, **rest}:
            messages = rest.get("messages")
            return Ending(id, messages if isinstance(messages, int) else None)
    return None


class Listener:
    """Follows the contexts of one pod. It owns what it has heard of those that live."""

    def __init__(self, pod: str, *, participant: str | None = None) -> None:
        self._pod = pod
        self._participant = participant  # what memory itself answers is no news to it
        self._episodes: OrderedDict[str, _Episode] = OrderedDict()

    def adopt(self, context: Mapping[str, Any]) -> None:
        """Hear of a context that began before we listened, from the welcome.

        Without a creator in it, nobody's conclusion of it counts.
        """
        self._episodes.setdefault(
            str(context["id"]),
            _Episode(context.get("creator"), context.get("type"), context.get("parent")),
        )

    def disown(self) -> None:
        """Something was missed: any context may have ended and begun anew, with another creator."""
        for episode in self._episodes.values():
            episode.creator = None

    def receive(self, envelope: Envelope) -> list[Finding]:
        """Hear one envelope; what is to be remembered because of it."""
        if ended := ending(envelope):
            return self._ended(ended.context, envelope)
        if envelope.context is None or envelope.kind.startswith(("system/", "pod/")):
            return []
        if envelope.sender == self._participant:
            return []
        episode = self._episode(envelope)
        if envelope.context.metadata.get("memory") == "off":  # M-33
            if envelope.sender == episode.creator:
                episode.off = True
                episode.turns.clear()
                episode.errors.clear()
            return []
        if self._is_off(envelope.context.id):
            return []
        self._hear(episode, envelope)
        # M-30: nobody concludes another's reasoning.
        if envelope.kind == kinds.CONCLUSION and envelope.sender == episode.creator:
            return self._concluded(envelope.context.id, episode, envelope)
        return []

    def _episode(self, envelope: Envelope) -> _Episode:
        context = envelope.context
        assert context is not None
        episode = self._episodes.get(context.id)
        if episode is None:
            episode = self._episodes[context.id] = _Episode(creator=envelope.sender)
            if len(self._episodes) > _MAX_CONTEXTS:
                self._episodes.popitem(last=False)
        self._episodes.move_to_end(context.id)
        # As at the gateway, the first envelope that names them fixes them.
        episode.type = episode.type or context.type
        if episode.parent is None and context.parent is not None:
            episode.parent = context.parent
            episode.placed = envelope.sender == episode.creator
        return episode

    def _hear(self, episode: _Episode, envelope: Envelope) -> None:
        episode.participants.add(envelope.sender)
        if len(episode.envelopes) < _MAX_ENVELOPES:
            episode.envelopes.append(envelope.id)
        if problem := _problem(envelope):
            if len(episode.errors) < _MAX_GOTCHAS:
                episode.errors.setdefault(problem, envelope)
        elif text := _said(envelope):
            episode.turns.append(Turn(envelope.sender, text[:_MAX_TURN_CHARS]))
            del episode.turns[:-_MAX_TURNS]

    def _concluded(self, id: str, episode: _Episode, envelope: Envelope) -> list[Finding]:
        text = _said(envelope) or ""
        found = self._gotchas(id, episode)
        if text:
            # The conclusion in full; beside it, what led there.
            turns = tuple(turn for turn in episode.turns if turn.text != text)
            own = _in_ones_own_name(envelope.sender, text)
            kind = KINDS_BY_TYPE.get(episode.type or "", "summary")
            concluded = self._finding(id, episode, envelope, kind, headline(text), own, turns)
            found.insert(0, concluded)
        episode.concluded = True
        episode.turns.clear()
        episode.errors.clear()
        return found

    def _ended(self, id: str, envelope: Envelope) -> list[Finding]:
        off = self._is_off(id)
        episode = self._episodes.pop(id, None)
        if episode is None or off or episode.creator is None:
            return []
        found = self._gotchas(id, episode)
        if episode.turns and not episode.concluded:
            kind = "plan" if KINDS_BY_TYPE.get(episode.type or "") == "plan" else "session"
            title = headline(f"{episode.type or 'context'}: {episode.turns[0].text}")
            turns = tuple(episode.turns)
            found.insert(0, self._finding(id, episode, envelope, kind, title, turns=turns))
        return found

    def _gotchas(self, id: str, episode: _Episode) -> list[Finding]:
        return [
            self._finding(id, episode, envelope, "gotcha", headline(problem), problem)
            for problem, envelope in episode.errors.items()
        ]

    def _finding(
        self,
        id: str,
        episode: _Episode,
        envelope: Envelope,
        kind: str,
        title: str,
        concluded: str = "",
        turns: tuple[Turn, ...] = (),
    ) -> Finding:
        author = envelope.sender if envelope.sender != GATEWAY else episode.creator
        assert author is not None
        draft = Draft(
            title=title,
            content=_content(concluded, summarize(turns)),
            kind=kind,
            source=f"mcpp://{self._pod}/{id}#{envelope.id}",
            valid_at=_moment(envelope.ts),
            # The same log heard twice, after a restart say, is remembered once.
            idempotency_key=f"bus:{envelope.id}",
        )
        metadata = {
            "pod": self._pod,
            "context": id,
            "context_type": episode.type,
            "lineage": self._lineage(id, episode),
            "envelopes": list(episode.envelopes),
            "participants": sorted(episode.participants),
        }
        return Finding(draft, author, metadata, concluded, turns)

    def _lineage(self, id: str, episode: _Episode) -> list[str]:
        """The context and those above it, the topmost first, as far as they are known."""
        line = [id]
        parent = episode.parent
        while parent is not None and parent not in line:
            line.append(parent)
            above = self._episodes.get(parent)
            parent = above.parent if above else None
        return line[::-1]

    def _is_off(self, id: str) -> bool:
        """M-33, where nobody else can opt a context out by putting it below such a one."""
        seen: set[str] = set()
        above: str | None = id
        while above is not None and above not in seen:
            seen.add(above)
            episode = self._episodes.get(above)
            if episode is None:
                return False
            if episode.off:
                return True
            above = episode.parent if episode.placed else None
        return False


def _said(envelope: Envelope) -> str | None:
    """The text that an envelope of a known kind carries."""
    payload = envelope.payload
    if not isinstance(payload, dict):
        return None
    names = {
        kinds.CHAT: ("text",),
        kinds.REFLECTION: ("thought",),
        kinds.CONCLUSION: ("decision", "text", "plan", "summary"),
    }.get(envelope.kind, ())
    parts = dict.fromkeys(_text(payload[name]) for name in names if payload.get(name))
    return _without_secrets("\n".join(part for part in parts if part)) or None


def _content(concluded: str, summary: str) -> str:
    return "\n\n".join(part for part in (concluded, summary) if part)[:_MAX_CONTENT_CHARS]


def _in_ones_own_name(author: str, text: str) -> str:
    """A text beside a summary of a talk: none of its lines can pass for another's turn."""
    lines = text.splitlines()
    return "\n".join(f"{author}: {line}" if _LIKE_A_TURN.match(line) else line for line in lines)


def _without_secrets(text: str) -> str:
    """The text as it may be cut and summarized: half a secret would no longer look like one."""
    if len(text) > _MAX_READ_CHARS:
        text = text[:_MAX_READ_CHARS]
        text = text[: -len(text.split()[-1])]  # the last word may be cut
    return redact(text)


def _text(value: Any) -> str:
    """A value as text: a list is one of lines, an object one of named lines."""
    if isinstance(value, str):
        return clean(value).strip()
    if isinstance(value, list):
        return "\n".join(f"- {_text(each)}" for each in value)
    if isinstance(value, dict):
        return "\n".join(f"{_text(name)}: {_text(each)}" for name, each in value.items())
    return str(value)


def _moment(ts: str) -> str | None:
    """When it was said; the year 0 and its like pass the gateway, but nobody can count them."""
    try:
        seconds_of(ts)
    except InvalidMemory:
        return None
    return ts


def _problem(envelope: Envelope) -> str | None:
    """What went wrong, where an envelope is the answer to a call that failed."""
    kind = Kind.parse(envelope.kind)
    if kind.family != kinds.RESPONSE or not isinstance(envelope.payload, dict):
        return None
    call = _text(kind.name or kind.method or "call")
    match envelope.payload:
        case {"error": {"message": str(message)}}:
            return _without_secrets(f"{call} failed: {_text(message)}")
        case {"result": {"isError": True, "content": [{"text": str(text)}, *_]}}:
            return _without_secrets(f"{call} failed: {_text(text)}")
    return None
