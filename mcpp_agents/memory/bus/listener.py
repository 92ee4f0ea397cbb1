"""The listener decides which memories the contexts of a pod become.

It receives the envelopes of a pod in order and returns memories to store. It does no I/O and has no
clock, so every rule (M-30 to M-38 of spec/memory.md) can be tested without a pod. What it keeps of
a live context is bounded. The number of contexts is bounded by the gateway, not here: if the
listener dropped a live context, the context would seem to begin again, with another creator.

Of expired contexts it keeps a limited number, in case they are revived. A revived context that it
does not know may have opted out, so it is treated as if it had.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, NamedTuple

from mcpp import Envelope, kinds
from mcpp.payloads import ContextInfo, opts_out
from mcpp.prompts import is_summarized
from mcpp.protocol.contexts import ContextTracker, Lineage, read_context_change
from mcpp_agents.memory.bus.context_record import ContextRecord, EnvelopeRef
from mcpp_agents.memory.bus.extracted_memory import ExtractedMemory
from mcpp_agents.memory.bus.extraction import MemoryExtractor
from mcpp_agents.memory.bus.summaries.rolling import (
    EndedSummary,
    RollingPolicy,
    RollingSummary,
)
from mcpp_agents.recent_ids import RecentIds

_MAX_CHATS: Final = 1_000  # that a context may refer to as its question
_MAX_CHAT_BYTES: Final = 8_192
_MAX_EXPIRED: Final = 10_000
_MAX_TURN_CHARS: Final = 16_000_000  # of all live contexts together
_TURNS_BETWEEN_SUMS: Final = 100


class _ExpiredContext(NamedTuple):
    """What is needed of an expired context if it is revived."""

    creator: str | None  # None: its beginning was not received
    generation: int
    concluded: bool
    is_erased: bool
    opted_out: bool


class ContextListener:
    """Follows the contexts of one pod. It owns the records of those that are live."""

    def __init__(
        self,
        pod: str,
        *,
        participant: str | None = None,
        rolling: RollingPolicy | None = None,
    ) -> None:
        self._pod = pod
        self._rolling = rolling  # None: open contexts are not summarized
        self._summaries: dict[str, RollingSummary | EndedSummary] = {}  # not taken yet
        self._participant = participant  # memory's own envelopes are ignored
        self._tracker = ContextTracker()
        self._records: dict[str, ContextRecord] = {}
        self._expired: OrderedDict[str, _ExpiredContext] = OrderedDict()
        self._chats: OrderedDict[str, Envelope] = OrderedDict()
        self._erased = RecentIds()  # what was erased from the log before it was received
        self._generation = 0
        self._turns = 0
        self._opted_out: frozenset[str] = frozenset()

    @property
    def contexts(self) -> tuple[str, ...]:
        """The ids of the live contexts that are known."""
        return tuple(self._records)

    @property
    def opted_out(self) -> frozenset[str]:
        """The live contexts whose creators have opted out, for a later listener."""
        return self._opted_out

    def opt_out(self, contexts: Iterable[str]) -> None:
        """Add contexts of which an earlier listener knows that they have opted out."""
        self._opted_out |= frozenset(contexts)

    def take_summaries(self) -> list[RollingSummary | EndedSummary]:
        """Return what became of rolling summaries since the last call, once for each context."""
        taken = list(self._summaries.values())
        self._summaries.clear()
        return taken

    def add_summarized(self, contexts: Iterable[str]) -> None:
        """Add contexts of which a rolling summary is stored; drop it where none is kept."""
        for id in contexts:
            record = self._records.get(id)
            if record is not None and not record.concluded and not self._is_opted_out(id):
                record.has_summary = True
            else:
                self._summaries.setdefault(id, EndedSummary(id))

    def add_context(self, info: ContextInfo) -> None:
        """Add a context whose beginning was not received: nothing of it is kept (M-30).

        Even where the gateway names the creator, it may have opted out in what was not received.
        """
        if info.id not in self._records:
            self._tracker.contexts[info.id] = info
            self._records[info.id] = self._new_record(None)

    def forget_creators(self) -> None:
        """Handle a gap: any context may have ended and begun again with another creator."""
        self._expired.clear()
        for record in self._records.values():
            record.creator = None
            record.forget_conversation()

    def forget_conversations(self) -> None:
        """Forget what was said so far: a part of it was erased from the log."""
        self._chats.clear()
        for record in self._records.values():
            record.subject.clear()
            record.forget_conversation()

    def end_context(self, context: str) -> list[ExtractedMemory]:
        """Return the memories of a live context that has ended without notice."""
        record = self._records[context]
        return self._end(context, record, record.last) if record.last else []

    def clear(self) -> None:
        """Forget all contexts: the gateway has lost its log, and they have ended."""
        for id, record in self._records.items():
            self._drop_summary(id, record)
        self._tracker.reset()
        self._records.clear()
        self._expired.clear()
        self._chats.clear()
        self._opted_out = frozenset()

    def receive(self, envelope: Envelope) -> list[ExtractedMemory]:
        """Process one envelope and return the memories to store because of it."""
        if change := read_context_change(envelope):
            if change.event == "revived":
                self._tracker.change(envelope)
                for info in change.contexts:
                    self._revive(info.id)
                return []
            ref = EnvelopeRef.of(envelope)
            return [each for info in change.contexts for each in self._expire(info.id, ref)]
        if envelope.kind.startswith(("system/", "pod/")) or envelope.sender == self._participant:
            return []
        if envelope.kind == kinds.TOMBSTONE:
            self._erased.add(envelope.id)
        if envelope.context is None:
            self._add_chat(envelope)
            return []
        id = envelope.context.id
        record = self._observe(id, envelope)
        if envelope.kind == kinds.TOMBSTONE:
            record.is_erased = True
            return []
        if opts_out(envelope.context.metadata):  # M-33
            if record.creator in (envelope.sender, None):
                self._opted_out |= {id}
                record.forget_conversation()
                for each, known in self._records.items():
                    if known.has_summary and self._is_opted_out(each):
                        self._drop_summary(each, known)
            return []
        if not self._is_kept(id):
            return []
        record.add_envelope(envelope)
        # M-30: only the creator says what a context is about, and concludes it.
        if envelope.sender == record.creator:
            self._add_subject(record, envelope)
            if not self._is_kept(id):  # its question was erased
                return []
            if envelope.kind == kinds.CONCLUSION:
                memories = self._extractor(id, record).conclude(envelope)
                record.concluded = True
                record.forget_conversation()
                self._drop_summary(id, record)
                return memories
        self._add_chat(envelope)
        self._roll(id, record, envelope, record.add_turn(envelope))
        self._bound_turns()
        return []

    # Rolling summaries (M-53)

    def _roll(self, id: str, record: ContextRecord, envelope: Envelope, text: str) -> None:
        if self._rolling is None or record.concluded or not is_summarized(envelope):
            return
        step = record.rolling.add(envelope, text, self._rolling)
        if step is not None:
            self._summaries[id] = self._extractor(id, record).roll(step)
            record.has_summary = True

    def _drop_summary(self, id: str, record: ContextRecord) -> None:
        record.rolling.clear()
        if record.has_summary:
            record.has_summary = False
            self._summaries[id] = EndedSummary(id)

    # Contexts

    def _observe(self, id: str, envelope: Envelope) -> ContextRecord:
        record = self._records.get(id)
        if record is None:
            record = self._records[id] = self._new_record(envelope.sender)
        self._tracker.learn(envelope)
        return record

    def _new_record(self, creator: str | None) -> ContextRecord:
        return ContextRecord(creator, self._next_generation())

    def _next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def _expire(self, id: str, ref: EnvelopeRef) -> list[ExtractedMemory]:
        record = self._records.get(id)
        memories = self._end(id, record, ref) if record else []
        if record is not None:
            self._drop_summary(id, record)
        if not self._is_kept(id):
            for chat in list(self._chats.values()):
                if chat.context is not None and chat.context.id == id:
                    del self._chats[chat.id]
        self._records.pop(id, None)
        self._expired.pop(id, None)
        if record is not None:
            self._expired[id] = _ExpiredContext(
                record.creator,
                record.generation,
                record.concluded,
                record.is_erased,
                id in self._opted_out,
            )
            if len(self._expired) > _MAX_EXPIRED:
                self._expired.popitem(last=False)
        self._tracker.forget(id)
        self._opted_out -= {id}
        return memories

    def _revive(self, id: str) -> None:
        """Continue an expired context, as far as it is known (C-12, M-33)."""
        if id in self._records:
            return
        info = self._tracker.contexts[id]
        if info.creator is None:
            return  # a placeholder: its first envelope begins it
        expired = self._expired.pop(id, None)
        if expired is None or expired.creator not in (None, info.creator):
            expired = _ExpiredContext(None, self._next_generation(), False, False, opted_out=True)
        self._records[id] = ContextRecord(
            expired.creator,
            expired.generation,
            concluded=expired.concluded,
            is_erased=expired.is_erased,
        )
        if expired.opted_out:
            self._opted_out |= {id}

    def _end(self, id: str, record: ContextRecord, ref: EnvelopeRef) -> list[ExtractedMemory]:
        return self._extractor(id, record).end(ref) if self._is_kept(id) else []

    def _extractor(self, id: str, record: ContextRecord) -> MemoryExtractor:
        lineage = self._tracker.find(id) or Lineage(id)
        parent = self._records.get(lineage.ancestors[0]) if lineage.ancestors else None
        return MemoryExtractor(self._pod, lineage, record, parent.generation if parent else 0)

    def _is_kept(self, id: str) -> bool:
        """Return whether anything said in a context may be kept (H-14, M-30, M-33)."""
        record = self._records.get(id)
        if record is not None and (record.creator is None or record.is_erased):
            return False
        return not self._is_opted_out(id)

    def _is_opted_out(self, id: str) -> bool:
        """Return whether a context or an ancestor has opted out (M-33)."""
        seen: set[str] = set()
        current: str | None = id
        while current is not None and current not in seen:
            seen.add(current)
            if current in self._opted_out:
                return True
            known = self._tracker.contexts.get(current)
            current = None if known is None else known.parent
        return False

    # The question that a context answers (M-38)

    def _add_chat(self, envelope: Envelope) -> None:
        # Kept undecoded: few of them are ever read.
        if envelope.kind == kinds.CHAT and envelope.size_bytes <= _MAX_CHAT_BYTES:
            self._chats[envelope.id] = envelope
            if len(self._chats) > _MAX_CHATS:
                self._chats.popitem(last=False)

    def _bound_turns(self) -> None:
        """Drop turns of the longest conversations while all of them together are too long (M-39).

        The sum is taken from time to time: one turn is short.
        """
        self._turns += 1
        if self._turns % _TURNS_BETWEEN_SUMS:
            return
        longest = sorted(self._records.values(), key=lambda record: -record.turn_chars)
        excess = sum(record.turn_chars for record in longest) - _MAX_TURN_CHARS
        for record in longest:
            if excess <= 0:
                return
            excess -= record.drop_turns()

    def _add_subject(self, record: ContextRecord, envelope: Envelope) -> None:
        """Record the question and the subject that the creator's envelope names."""
        assert envelope.context is not None
        self._add_question(record, envelope.correlation_id)
        for name, value in envelope.context.metadata.items():
            if record.has_full_subject:
                return
            if name not in record.subject and not self._add_question(record, value):
                record.add_subject(envelope.sender, name, value)

    def _add_question(self, record: ContextRecord, id: object) -> bool:
        """Return whether a value is a chat's id; start an empty conversation with that chat."""
        if isinstance(id, str) and id in self._erased:
            record.is_erased = True
        chat = self._chats.get(id) if isinstance(id, str) else None
        if chat is None or (chat.context is not None and not self._is_kept(chat.context.id)):
            return False
        if not record.turns and not record.concluded:
            record.add_turn(chat)
            # An erasure of the question, by its sender or its time, erases the memory (H-14).
            record.began = chat.ts
            record.participants.add(chat.sender)
        return True
