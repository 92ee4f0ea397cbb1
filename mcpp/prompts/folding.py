"""Concluded contexts folded: the conclusion, a one-line outline, and a handle for the rest.

A conclusion folds what came before it in its context and below it. What is said there afterwards is
news and stays. Only a conclusion by the context's creator counts: nobody may replace another's
reasoning.
"""

from collections import Counter
from collections.abc import Iterable

from mcpp import kinds
from mcpp.contexts import Lineage
from mcpp.envelope import Envelope
from mcpp.prompts import fences
from mcpp.prompts.blocks import Text
from mcpp.prompts.entries import Entry, Episode, conclusion_text
from mcpp.transient.tracker import new_handle


class Episodes:
    """The contexts of a log as they come and go. Owns the ones that live."""

    def __init__(self) -> None:
        self._live: dict[str, Episode] = {}

    def observe(self, envelope: Envelope, lineage: Lineage) -> tuple[Episode, ...]:
        """Return the contexts an envelope stands in, the outermost first."""
        own = self._live.get(lineage.id)
        if own is None:
            own = self._live[lineage.id] = Episode(lineage.id, envelope.sender)
        own.type = lineage.type
        if not lineage.ancestors:
            return (own,)
        above = [self._live[one] for one in reversed(lineage.ancestors) if one in self._live]
        own.depth = len(above)
        return (*above, own)

    def forget(self, id: str) -> None:
        """Forget an expired context; its id may be used anew, for something else."""
        self._live.pop(id, None)


def concludes(envelope: Envelope, chain: tuple[Episode, ...]) -> bool:
    """Tell whether an envelope concludes its context."""
    return (
        bool(chain) and envelope.kind == kinds.CONCLUSION and envelope.sender == chain[-1].creator
    )


def members_of(episode: Episode) -> list[Entry]:
    """Return what a context's conclusion folds: all before it, here and in inner contexts.

    A result stands where its call does, so that a pair is never broken.
    """
    end = episode.conclusion
    assert end is not None
    return [
        entry
        for entry in episode.members
        if (entry.partner if entry.sort == "result" and entry.partner else entry).at <= end.at
    ]


def fold_handle(episode: Episode) -> str:
    """Return the name under which a folded context can be asked for."""
    assert episode.conclusion is not None
    return new_handle("context " + episode.conclusion.envelope.id)


def fold_note(episode: Episode, members: Iterable[Entry]) -> Text:
    """Return what stands for a folded context: its outline in our words, its conclusion quoted."""
    end = episode.conclusion
    assert end is not None
    entries = list(members)
    senders = Counter(fences.name(entry.envelope.sender) for entry in entries)
    tools = Counter(
        fences.tool(entry.call.tool)
        for entry in entries
        if entry.call is not None and entry.call.request is entry.envelope
    )
    inner = {one.id for entry in entries for one in entry.chain} - {episode.id}
    inner -= {one.id for one in end.chain}
    outline = [f"{len(entries)} messages from {_some(senders)}"]
    outline += [f"calls of {_some(tools)}"] if tools else []
    outline += [f"{len(inner)} inner contexts"] if inner else []
    sort = f"{fences.name(episode.type)} " if episode.type else ""
    said = conclusion_text(end.envelope.payload)
    return Text(
        f"[folded; handle {fold_handle(episode)}] {sort}{fences.name(episode.id)}: "
        f"{'; '.join(outline)}. @{fences.name(episode.creator)} concludes:\n{fences.quote(said)}"
    )


def _some(names: "Counter[str]", limit: int = 5) -> str:
    shown = [name for name, _ in names.most_common(limit)]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")
