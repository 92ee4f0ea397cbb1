"""The bus is the memory: what to keep of the contexts in a pod.

A `Listener` is fed a pod's envelopes in their order and answers with what to remember. It does no
I/O and knows no clock, so every rule (M-30 to M-38 of spec/memory.md) is testable without a pod.
What it keeps of a live context is bounded; how many there are is the gateway's to bound, for one
whose beginning was forgotten would seem to begin anew, with another creator.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from mcpp import Envelope, Kind, kinds
from mcpp_agents.memory.bus.findings import Finding, content, telling
from mcpp_agents.memory.bus.speech import (
    about,
    confidence,
    in_ones_own_name,
    moment,
    problem,
    said,
    says_off,
)
from mcpp_agents.memory.bus.summary import Turn, headline, summarize
from mcpp_agents.memory.requests import BUS_SCHEME, MemoryDraft

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

_MAX_CHATS: Final = 1_000  # that a context may answer
_MAX_CHAT_BYTES: Final = 8_192
_MAX_TURNS: Final = 200
_MAX_TURN_CHARS: Final = 4_000
_MAX_ABOUT_CHARS: Final = 1_000
_MAX_ENVELOPES: Final = 50
_MAX_GOTCHAS: Final = 3
_MAX_CALLS: Final = 50  # of one asker in one context, that wait for an answer


class _Place(NamedTuple):
    """Where something was said: as much of an envelope as is kept."""

    id: str
    ts: str

    @classmethod
    def of(cls, envelope: Envelope) -> "_Place":
        return cls(envelope.id, envelope.ts)


class _Failure(NamedTuple):
    """A call that failed: where that was answered, and whose call it was."""

    place: _Place
    asker: str


@dataclass
class _Episode:
    """A live context, as far as it was heard."""

    creator: str | None
    life: int
    type: str | None = None
    parent: str | None = None
    placed: bool = False  # its creator itself put it below its parent
    last: _Place | None = None
    concluded: bool = False
    about: dict[str, str] = field(default_factory=dict)  # what its creator says that it is for
    turns: list[Turn] = field(default_factory=list)
    envelopes: list[str] = field(default_factory=list)
    participants: set[str] = field(default_factory=set)
    calls: dict[str, dict[str, set[str]]] = field(default_factory=dict)  # asker → id → asked
    errors: dict[str, _Failure] = field(default_factory=dict)  # of calls that the creator made
    other_errors: dict[str, _Failure] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        return "\n".join(self.about.values())

    def forget_talk(self) -> None:
        """What was said is remembered, or is not to be."""
        self.turns.clear()
        self.errors.clear()
        self.other_errors.clear()


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
        self._episodes: dict[str, _Episode] = {}
        self._chats: OrderedDict[str, Envelope] = OrderedDict()
        self._lives = 0
        self._opted_out: frozenset[str] = frozenset()

    @property
    def opted_out(self) -> frozenset[str]:
        """The live contexts whose creators have opted out: to be told to a later listener."""
        return self._opted_out

    def opt_out(self, contexts: Iterable[str]) -> None:
        """Hear that these have opted out, from a listener before us."""
        self._opted_out |= frozenset(contexts)

    def adopt(self, id: str, type: str | None = None, parent: str | None = None) -> None:
        """Hear of a context that began before we listened; nobody's conclusion of it counts."""
        self._episodes.setdefault(id, self._new(None, type, parent))

    def disown(self) -> None:
        """Something was missed: any context may have ended and begun anew, with another creator."""
        for episode in self._episodes.values():
            episode.creator = None
            episode.forget_talk()

    @property
    def contexts(self) -> tuple[str, ...]:
        """Those that live, as far as we know."""
        return tuple(self._episodes)

    def left_of(self, context: str) -> list[Finding]:
        """What is to be remembered of a live context, if it has come to its end unheard."""
        episode = self._episodes[context]
        return self._left_of(context, episode, episode.last) if episode.last else []

    def clear(self) -> None:
        """Hear that all contexts have ended: the gateway has lost its log, and with it them."""
        self._episodes.clear()
        self._chats.clear()
        self._opted_out = frozenset()

    def receive(self, envelope: Envelope) -> list[Finding]:
        """Hear one envelope; what is to be remembered because of it."""
        if ended := ending(envelope):
            return self._ended(ended.context, _Place.of(envelope))
        if envelope.kind.startswith(("system/", "pod/")) or envelope.sender == self._participant:
            return []
        if envelope.context is None:
            self._hear_chat(envelope)
            return []
        episode = self._episode(envelope)
        if says_off(envelope.context.metadata):  # M-33
            if episode.creator in (envelope.sender, None):
                self._opted_out |= {envelope.context.id}
                episode.forget_talk()
            return []
        if not self._keeps(envelope.context.id):
            return []
        self._hear(episode, envelope)
        # M-30: nobody concludes another's reasoning, or says what it is about.
        if envelope.sender == episode.creator:
            self._hear_about(episode, envelope)
            if envelope.kind == kinds.CONCLUSION:
                return self._concluded(envelope.context.id, episode, envelope)
        self._hear_chat(envelope)
        self._add_turn(episode, envelope)
        return []

    def _episode(self, envelope: Envelope) -> _Episode:
        context = envelope.context
        assert context is not None
        episode = self._episodes.get(context.id)
        if episode is None:
            episode = self._episodes[context.id] = self._new(envelope.sender)
        # As at the gateway, the first envelope that names them fixes them.
        episode.type = episode.type or context.type
        if episode.parent is None and context.parent is not None:
            episode.parent = context.parent
            episode.placed = envelope.sender == episode.creator
        return episode

    def _new(
        self, creator: str | None, type: str | None = None, parent: str | None = None
    ) -> _Episode:
        self._lives += 1
        return _Episode(creator, self._lives, type, parent)

    def _hear(self, episode: _Episode, envelope: Envelope) -> None:
        episode.last = _Place.of(envelope)
        episode.participants.add(envelope.sender)
        if len(episode.envelopes) < _MAX_ENVELOPES:
            episode.envelopes.append(envelope.id)
        match Kind.parse(envelope.kind).family:
            case kinds.REQUEST:
                calls = episode.calls.setdefault(envelope.sender, {})
                calls[envelope.id] = set(envelope.to or ()) - {envelope.sender}
                if len(calls) > _MAX_CALLS:
                    del calls[next(iter(calls))]
            case kinds.RESPONSE:
                self._hear_answer(episode, envelope)

    def _hear_chat(self, envelope: Envelope) -> None:
        """Keep it as it is, for it may be a question; only few are ever read."""
        if envelope.kind == kinds.CHAT and len(envelope.raw_payload) <= _MAX_CHAT_BYTES:
            self._chats[envelope.id] = envelope
            if len(self._chats) > _MAX_CHATS:
                self._chats.popitem(last=False)

    def _hear_about(self, episode: _Episode, envelope: Envelope) -> None:
        """M-38: what the creator says that its context is about, and the question it answers."""
        assert envelope.context is not None
        self._hear_question(episode, envelope.correlation_id)
        for name, value in envelope.context.metadata.items():
            # Looked at first: to redact many small ones would take its time.
            if len(episode.subject) >= _MAX_ABOUT_CHARS:
                return
            if name in episode.about or self._hear_question(episode, value):
                continue
            if text := about(name, value):
                line = in_ones_own_name(envelope.sender, text)
                episode.about[name] = line[:_MAX_ABOUT_CHARS]

    def _hear_question(self, episode: _Episode, id: object) -> bool:
        """Whether it is a chat's id; where nothing was said yet, that is how the talk begins."""
        chat = self._chats.get(id) if isinstance(id, str) else None
        if chat is None or (chat.context is not None and not self._keeps(chat.context.id)):
            return False
        if not episode.turns and not episode.concluded:
            self._add_turn(episode, chat)
        return True

    def _add_turn(self, episode: _Episode, envelope: Envelope) -> None:
        if text := said(envelope):
            episode.turns.append(Turn(envelope.sender, text[:_MAX_TURN_CHARS]))
            del episode.turns[1:-_MAX_TURNS]  # the first one often is the question

    def _hear_answer(self, episode: _Episode, envelope: Envelope) -> None:
        """M-32: what nobody asked for is no failed call, and nobody crowds out the creator's."""
        id = envelope.correlation_id or ""
        asker = next((each for each, calls in episode.calls.items() if id in calls), None)
        if asker is None or envelope.sender not in episode.calls[asker][id]:
            return
        episode.calls[asker][id].remove(envelope.sender)
        errors = episode.errors if asker == episode.creator else episode.other_errors
        if len(errors) < _MAX_GOTCHAS and (wrong := problem(envelope)):
            errors.setdefault(wrong, _Failure(_Place.of(envelope), asker))

    def _concluded(self, id: str, episode: _Episode, envelope: Envelope) -> list[Finding]:
        text, place = said(envelope), _Place.of(envelope)
        found = self._gotchas(id, episode)
        if not text:
            found = self._talk(id, episode, place) + found
        else:
            # The conclusion in full; beside it, what led there.
            turns = tuple(t for t in episode.turns if t.text != text[:_MAX_TURN_CHARS])
            own = in_ones_own_name(envelope.sender, text)
            kind = KINDS_BY_TYPE.get(episode.type or "", "summary")
            told = telling(own, episode.subject)
            concluded = self._finding(id, episode, place, kind, headline(text), told, turns)
            sure = confidence(envelope)
            found.insert(0, concluded if sure is None else concluded.with_facts(confidence=sure))
        episode.concluded = True
        episode.forget_talk()
        return found

    def _ended(self, id: str, place: _Place) -> list[Finding]:
        episode = self._episodes.get(id)
        left = self._left_of(id, episode, place) if episode else []
        if not self._keeps(id):
            for chat in list(self._chats.values()):
                if chat.context is not None and chat.context.id == id:
                    del self._chats[chat.id]
        self._episodes.pop(id, None)
        self._opted_out -= {id}
        return left

    def _left_of(self, id: str, episode: _Episode, place: _Place) -> list[Finding]:
        """What is to be remembered of a context that has ended."""
        if not self._keeps(id):
            return []
        found = self._gotchas(id, episode)
        return found if episode.concluded else self._talk(id, episode, place) + found

    def _talk(self, id: str, episode: _Episode, place: _Place) -> list[Finding]:
        """What was said, where nothing was concluded from it."""
        if not episode.turns:
            return []
        kind = "plan" if KINDS_BY_TYPE.get(episode.type or "") == "plan" else "session"
        title = headline(f"{episode.type or 'context'}: {episode.turns[0].text}")
        turns = tuple(episode.turns)
        return [self._finding(id, episode, place, kind, title, episode.subject, turns)]

    def _gotchas(self, id: str, episode: _Episode) -> list[Finding]:
        errors = {**episode.other_errors, **episode.errors}
        first = list(dict.fromkeys([*episode.errors, *episode.other_errors]))[:_MAX_GOTCHAS]
        return [
            self._finding(
                id, episode, errors[wrong].place, "gotcha", headline(wrong), wrong,
                author=errors[wrong].asker,
            )
            for wrong in first
        ]  # fmt: skip

    def _finding(
        self,
        id: str,
        episode: _Episode,
        place: _Place,
        kind: str,
        title: str,
        told: str,
        turns: tuple[Turn, ...] = (),
        *,
        author: str | None = None,
    ) -> Finding:
        author = author or episode.creator
        assert author is not None
        draft = MemoryDraft(
            title=title,
            content=content(told, summarize(turns)),
            kind=kind,
            source=f"{BUS_SCHEME}{self._pod}/{id}#{place.id}",
            valid_at=moment(place.ts),
            # The same log heard twice, after a restart say, is remembered once.
            idempotency_key=f"bus:{place.id}",
        )
        metadata = {
            "pod": self._pod,
            "context": id,
            "context_type": episode.type,
            "lineage": self._lineage(id, episode),
            "envelopes": list(episode.envelopes),
            "participants": sorted(episode.participants),
        }
        above = self._episodes.get(episode.parent) if episode.parent else None
        lives = (episode.life, above.life if above else 0)
        return Finding(draft, author, metadata, told, turns, lives)

    def _lineage(self, id: str, episode: _Episode) -> list[str]:
        """The context and those above it, the topmost first, as far as they are known."""
        line = [id]
        parent = episode.parent
        while parent is not None and parent not in line:
            line.append(parent)
            above = self._episodes.get(parent)
            parent = above.parent if above else None
        return line[::-1]

    def _keeps(self, id: str) -> bool:
        """Whether anything said in a context may be kept: M-30 and M-33."""
        episode = self._episodes.get(id)
        return (episode is None or episode.creator is not None) and not self._is_off(id)

    def _is_off(self, id: str) -> bool:
        """M-33, where nobody else can opt a context out by putting it below such a one."""
        seen: set[str] = set()
        above: str | None = id
        while above is not None and above not in seen:
            seen.add(above)
            if above in self._opted_out:
                return True
            episode = self._episodes.get(above)
            above = episode.parent if episode and episode.placed else None
        return False
