"""Concluded contexts folded: the conclusion, a one-line outline, and a handle for the rest.

A conclusion folds what came before it in its context and below it. What is said there afterwards is
news and stays. Only a conclusion by the context's creator counts: nobody may replace another's
reasoning.
"""

from collections import Counter
from collections.abc import Callable, Sequence

from mcpp import kinds
from mcpp.prompts import quoting
from mcpp.prompts.blocks import TextBlock
from mcpp.prompts.entries import Episode, PromptEntry, conclusion_text
from mcpp.protocol.contexts import Lineage
from mcpp.protocol.envelope import Envelope
from mcpp.transient.tracker import new_handle


class Episodes:
    """The contexts of a log as they come and go. Owns the ones that live."""

    def __init__(self) -> None:
        self._live: dict[str, Episode] = {}

    def observe(self, envelope: Envelope, lineage: Lineage) -> Episode:
        """Return the context an envelope stands in."""
        own = self._named(lineage.id)
        own.creator = own.creator or envelope.sender
        own.type = lineage.type
        if own.parent is None and lineage.ancestors:
            # A parent may be named late, or before it is used: what is inside goes with it anyway.
            parent = self._named(lineage.ancestors[0])
            if own not in parent.around():  # in a log that no gateway has checked
                own.parent = parent
                parent.inner.append(own)
        return own

    def find(self, id: str | None) -> Episode | None:
        """Return the live context with this id."""
        return None if id is None else self._live.get(id)

    def forget(self, id: str) -> None:
        """Forget an expired context; its id may be used anew, for something else."""
        self._live.pop(id, None)

    def _named(self, id: str) -> Episode:
        if id not in self._live:
            self._live[id] = Episode(id)
        return self._live[id]


def concludes(envelope: Envelope, episode: Episode | None) -> bool:
    """Tell whether an envelope concludes its context."""
    return (
        episode is not None
        and envelope.kind == kinds.CONCLUSION
        and envelope.sender == episode.creator
    )


def members_of(episode: Episode) -> list[PromptEntry]:
    """Return what a context's conclusion folds: all before it, here and in inner contexts.

    A result stands where its call does, so that a pair is never broken.
    """
    end = episode.conclusion
    assert end is not None
    inside = episode.members
    if episode.inner:
        inside = [entry for one in episode.within() for entry in one.members]
        inside.sort(key=lambda entry: entry.at)
    return [
        entry
        for entry in inside
        if (entry.partner if entry.sort == "result" and entry.partner else entry).at <= end.at
    ]


def fold_handle(episode: Episode) -> str:
    """Return the name under which a folded context can be asked for."""
    assert episode.conclusion is not None
    return new_handle("context " + episode.conclusion.envelope.id)


def fold_note(episode: Episode, members: Sequence[PromptEntry], handle: str) -> TextBlock:
    """Return what stands for a folded context: its outline in our words, its conclusion quoted."""
    end = episode.conclusion
    assert end is not None
    senders = Counter([entry.envelope.sender for entry in members])
    calls = [entry.call for entry in members if entry.call is not None and not entry.is_result]
    tools = Counter([call.tool for call in calls])
    inner = {entry.episode for entry in members} - {episode}
    outline = [f"{len(members)} messages from {_some(senders, quoting.name)}"]
    outline += [f"calls of {_some(tools, quoting.tool)}"] if tools else []
    outline += [f"{len(inner)} inner contexts"] if inner else []
    sort = f"{quoting.name(episode.type)} " if episode.type else ""
    said = conclusion_text(end.envelope.payload)
    return TextBlock(
        f"[folded; handle {handle}] {sort}{quoting.name(episode.id)}: "
        f"{'; '.join(outline)}. @{quoting.name(episode.creator)} concludes:\n{quoting.quote(said)}"
    )


def _some(names: "Counter[str]", fence: Callable[[str], str], limit: int = 5) -> str:
    shown = [fence(name) for name, _ in names.most_common(limit)]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")
