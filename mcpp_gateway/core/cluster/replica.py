"""The replica: the state of a pod as the committed log describes it, at every gateway.

While this gateway leads, its tree runs ahead of the log: deciding changes it at once. So the tree
is kept as of an earlier position, with the batches since. When the leadership is lost, what was
decided and not committed never happened: the tree is built again from these (2.2 µs an entry).
"""

from mcpp import kinds
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.attachments.blob_table import BlobTable
from mcpp_gateway.core.cluster.journal import ClusterJournal
from mcpp_gateway.core.cluster.leading.leadership import Fence
from mcpp_gateway.core.cluster.records import GONE, JOINED, LEFT, REPLACED, ClusterState, Note
from mcpp_gateway.core.cluster.roster import ClusterRoster
from mcpp_gateway.core.contexts.replay import replay
from mcpp_gateway.core.contexts.tree import LiveContexts
from mcpp_gateway.core.joining.cards import Cards
from mcpp_gateway.core.limits import PodLimits
from mcpp_gateway.core.records import Batch, DormantState, LiveState, LogEntry, State

TreeState = tuple[tuple[LiveState, ...], tuple[DormantState, ...]]

# Gateways that are gone are remembered, so that what they sent before is not taken for new.
_MAX_GONE = 1000
_GONE_NUMBER = -1


class Replica:
    """The committed state of one pod. Changed only by the records of the log that count."""

    def __init__(self, limits: PodLimits, fence: Fence | None = None) -> None:
        self.epoch = ""
        self.time = 0.0
        self.sequence = 0  # of the last record that was applied
        self.fence = fence or Fence()
        self.heard: dict[str, int] = {}
        self.roster = ClusterRoster()
        self.journal = ClusterJournal(limits.history_messages, limits.history_bytes)
        self.tree = LiveContexts(limits)
        self.cards = Cards()
        self.blobs = BlobTable(lambda participant: limits)  # the pod's own takes its place
        self.granted: dict[str, bytes] = {}  # what signed tokens admit, by participant
        self._limits = limits
        self._base: TreeState | None = None  # None: the tree does not run ahead
        self._since: list[Batch] = []
        self._checkpoint: tuple[int, TreeState] | None = None  # as of the end of this batch

    def change_limits(self, limits: PodLimits) -> None:
        """Apply new limits, also to what is decided after a leader has stepped down."""
        self._limits = limits

    # --- applying -------------------------------------------------------------------------------

    def begin_batch(self, batch: Batch, sequence: int) -> None:
        """Take a batch that counts; its entries and notes follow."""
        self.time = max(self.time, batch.time)
        self.journal.begin_record(sequence)
        if self._base is not None:
            self._since.append(batch)

    def apply_entry(self, entry: LogEntry, time: float) -> None:
        """Apply an entry that was appended to the journal."""
        if self._base is None:
            replay(self.tree, entry, time)
        if entry.about and entry.sender == GATEWAY and entry.kind == kinds.PRESENCE:
            for id in entry.about:
                if is_join(entry):
                    self.roster.present[id] = None
                else:
                    self.roster.leave(id)

    def apply_note(self, note: Note, time: float) -> None:
        """Apply a note: what it says about sessions."""
        apply_note(self.roster, self.heard, note, time, self.fence.index - 1)
        if note.event == JOINED and note.text:
            self.granted[note.participant] = note.text

    def end_batch(self, batch: Batch) -> bool:
        """End a batch. Return whether the tree's state as of it is known now."""
        self.journal.trim()
        checkpoint = self._checkpoint
        if checkpoint is None or checkpoint[0] != batch.index:
            return False
        self._base, self._checkpoint = checkpoint[1], None
        self._since.clear()
        return True

    # --- leading --------------------------------------------------------------------------------

    def run_ahead(self) -> None:
        """Let deciding change the tree from now on."""
        self._base = self.tree.snapshot()

    def checkpoint(self, index: int) -> None:
        """Keep the tree as it is after the batch with this index, the last one decided."""
        if self._checkpoint is None:
            self._checkpoint = index, self.tree.snapshot()

    def fall_back(self) -> None:
        """Undo what was decided and is not committed."""
        assert self._base is not None
        self.tree = LiveContexts(self._limits, caps=self.tree.caps)
        self.tree.restore(*self._base)
        for batch in self._since:
            for entry in batch.entries:
                replay(self.tree, entry, batch.time)
        self._base = self._checkpoint = None
        self._since.clear()

    @property
    def is_ahead(self) -> bool:
        """Whether the tree holds what is decided, so that entries need not be applied to it."""
        return self._base is not None

    @property
    def since_checkpoint(self) -> int:
        """How many batches would have to be applied again."""
        return len(self._since)

    # --- snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> ClusterState:
        """Return the state after the last batch, whose checkpoint was reached, or as a follower."""
        live, dormant = self._base or self.tree.snapshot()
        named, privately = self.blobs.snapshot()
        state = State(
            self.epoch,
            self.fence.term,
            self.fence.index,
            self.journal.end,
            self.time,
            tuple(self.roster.present),
            self.journal.window(),
            live,
            dormant,
            cards=self.cards.snapshot(),
            named=named,
            named_privately=privately,
        )
        return ClusterState(
            1,
            self.sequence,
            self.journal.window_sequence or self.sequence + 1,
            self.fence.leader,
            state,
            dict(self.heard),
            self.roster.snapshot(),
            dict(self.roster.absent),
            dict(self.granted),
        )

    def restore(self, state: ClusterState) -> None:
        """Begin with a state instead of with the first record."""
        inner = state.state
        self.epoch, self.time, self.sequence = inner.epoch, inner.time, state.sequence
        self.fence.term, self.fence.index = inner.term, inner.index
        self.fence.leader = state.leader
        self.heard = dict(state.heard)
        self.roster.restore(inner.present, state.sessions, state.absent)
        self.journal.restore(inner.position, inner.window, state.window_sequence)
        self.tree.restore(inner.live, inner.dormant)
        self.granted = dict(state.granted)
        for card in inner.cards:
            self.cards.set(card.participant, card.text)
        self.blobs.restore(inner)


def apply_note(
    roster: ClusterRoster, heard: dict[str, int], note: Note, time: float, index: int
) -> None:
    """Apply what a note of the batch with an index says about sessions to a roster."""
    key = (note.origin, note.session)
    if note.event == JOINED:
        roster.add(key, note.participant, index)
    elif note.event in (LEFT, REPLACED):
        roster.remove(key)
    elif note.event == GONE:
        roster.remove_gateway(note.origin, time)
        heard.pop(note.origin, None)
        heard[note.origin] = _GONE_NUMBER
        gone = [origin for origin, number in heard.items() if number == _GONE_NUMBER]
        for origin in gone[:-_MAX_GONE]:
            del heard[origin]


def is_join(entry: LogEntry) -> bool:
    """Return whether a presence is a join. The leader announces one participant at a time."""
    return b'"event":"join"' in entry.text
