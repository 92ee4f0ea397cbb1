"""Replaying the log: what its entries do to the context tree, without deciding again."""

from mcpp import kinds
from mcpp.protocol.codec import decode
from mcpp.protocol.contexts import read_context_change
from mcpp.protocol.envelope import GATEWAY
from mcpp_gateway.core.contexts.tree import LiveContexts
from mcpp_gateway.core.records import LogEntry


def replay(tree: LiveContexts, entry: LogEntry, time: float) -> None:
    """Apply an entry of the log to the tree, without deciding on it again."""
    if entry.lineage is not None:
        tree.replay(entry.lineage, entry.sender, time)
    elif entry.kind == kinds.CONTEXT and entry.sender == GATEWAY:
        change = read_context_change(decode(entry.text))
        if change is None:
            return
        if change.event == "expired":
            tree.replay_expiry((each.id for each in change.contexts), time)
        else:
            tree.replay_revival(change.contexts, time)
