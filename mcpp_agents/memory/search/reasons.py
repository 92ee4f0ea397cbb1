"""The `reason` of a pack item: a short list of the evidence for it (M-25)."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final

from mcpp_agents.memory.search.ranking import MEANINGFUL_COSINE, Candidate
from mcpp_agents.memory.search.terms import Query, spans
from mcpp_agents.memory.storage.engine import Evidence, Item, LinkedItem, Matches
from mcpp_agents.memory.vocabulary import known_kind

_SHOWN_TERMS: Final = 4
_SHOWN_TITLE_CHARS: Final = 60
_MAX_CONTRADICTORS: Final = 3

_UNITS: Final = (("year", 31_557_600), ("month", 2_629_800), ("day", 86_400), ("hour", 3_600),
                 ("minute", 60))  # fmt: skip


def reason(
    item: Item,
    candidate: Candidate,
    *,
    evidence: Evidence,
    query: Query,
    matches: Matches,
    better: Sequence[Item],
    contradicted_by: Sequence[LinkedItem],
    reader: str,
    now: float,
) -> str:
    """Return the reason of one item.

    `better` are the items ranked above it in the pack; `reader` is the account that asks for it.
    """
    parts = []
    if evidence.terms:
        parts.append(f"matches {_quoted(_display_terms(item, evidence, query, matches))}")
    elif evidence.nearby:
        parts.append(f"next to something that matches {_quoted(evidence.nearby[:_SHOWN_TERMS])}")
    relevance = candidate.relevance
    cosine, previous = relevance.cosine or 0.0, relevance.previous_cosine or 0.0
    if cosine >= MEANINGFUL_COSINE:
        parts.append(f"close in meaning ({cosine:.2f})")
    elif previous >= MEANINGFUL_COSINE:
        parts.append(f"follows something close in meaning ({previous:.2f})")
    if candidate.newest:
        where = f" in project {item.project}" if item.project else ""
        parts.append(
            f"the latest {known_kind(item.kind, is_quoted=_is_from_others(item, reader))}{where}"
        )
    context = _context_of(item)
    if context and (sibling := next((x for x in better if _context_of(x) == context), None)):
        verb = "decided in" if candidate.facet == "decisions" else "from"
        parts.append(f"{verb} the same context as {_name(sibling, reader)}")
    if contradicted_by:
        named = ", ".join(_name(one.item, reader) for one in contradicted_by[:_MAX_CONTRADICTORS])
        more = contradicted_by[0].alike - _MAX_CONTRADICTORS
        parts.append(f"contradicted by {named}" + (f" and {more} more" if more > 0 else ""))
    parts.append(age(now - item.since))
    return ", ".join(parts)


def age(seconds: float) -> str:
    """Return an age in its largest unit, such as `2 days old`."""
    for unit, length in _UNITS:
        if seconds >= length:
            count = int(seconds // length)
            return f"{count} {unit}{'s' if count > 1 else ''} old"
    return "new"


def _display_terms(item: Item, evidence: Evidence, query: Query, matches: Matches) -> list[str]:
    """Return dates, pairs and runs in the goal's spelling, then the rarest words outside them."""
    own = set(evidence.terms)
    dates = {one.shown: one.time.terms for one in query.dates if own.issuperset(one.time.terms)}
    own -= set(chain.from_iterable(dates.values()))
    pairs = [match.pair for match in matches.pairs if item.seq in match.seqs]
    pairs = [pair for pair in pairs if pair.first in own and pair.second in own]
    paired = {word for pair in pairs for word in (pair.first, pair.second)}
    parts = sorted({part for run in query.runs for part in spans(run, own)}, key=len, reverse=True)
    paired |= {term for term in own if any(term in part for part in parts)}
    single = sorted(own - paired, key=lambda term: (-matches.rarity.get(term, 0.0), term))
    shown = [" ".join(text.split()) for text in (*dates, *(pair.shown for pair in pairs))]
    return (shown + parts + single)[:_SHOWN_TERMS]


def _context_of(item: Item) -> tuple[object, object, object] | None:
    """Return what identifies the context of an item; ids are reused, also between pods."""
    facts = item.metadata
    envelopes = facts.get("envelopes")
    return (facts.get("pod"), facts["context"], envelopes[0]) if envelopes else None


def _is_from_others(item: Item, reader: str) -> bool:
    return item.is_from_pod or item.author_for(reader) is not None


def _name(item: Item, reader: str) -> str:
    """Return a name for another item; the title of what others wrote is not quoted here."""
    if _is_from_others(item, reader):
        kind = known_kind(item.kind, is_quoted=True)
        return f"a {kind} of {item.author_for(reader)} ({item.id})"
    text = " ".join(item.title.split())
    text = text if len(text) <= _SHOWN_TITLE_CHARS else text[: _SHOWN_TITLE_CHARS - 1] + "…"
    return _quoted([text])


def _quoted(words: Iterable[str]) -> str:
    return ", ".join(f"'{word}'" for word in words)
