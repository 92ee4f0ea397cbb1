"""Tables of kinds, facets, intents, layers and relationships.

`spec/memory.md` has the same tables, and a test compares them.
"""

from types import MappingProxyType
from typing import Final, Literal, NamedTuple

Intent = Literal["build", "plan", "ideate", "research", "debug", "decide", "learn", "general"]
LayerName = Literal["wake", "recall", "deep_search"]

# Facet → the title of its section.
FACETS: Final = MappingProxyType(
    {
        "active_work": "Active work",
        "artifacts": "Artifacts",
        "constraints": "Constraints",
        "decisions": "Decisions",
        "domain": "Domain knowledge",
        "gotchas": "Gotchas",
        "ideation": "Ideas",
        "planning": "Plans",
        "procedures": "Procedures",
        "recent_memory": "Recent memory",
        "verification": "Verification",
    }
)

_KINDS_BY_FACET: Final = {
    "active_work": ("task", "todo", "bug", "progress"),
    "artifacts": ("artifact", "file", "document", "code", "reference"),
    "constraints": ("constraint", "requirement", "rule", "policy", "preference"),
    "decisions": ("decision", "conclusion"),
    "domain": ("note", "fact", "concept", "definition", "entity", "learning", "claim"),
    "gotchas": ("gotcha", "error", "warning", "pitfall", "lesson"),
    "ideation": ("idea", "hypothesis", "question", "option"),
    "planning": ("plan", "milestone", "roadmap", "goal"),
    "procedures": ("procedure", "how_to", "runbook", "command", "workflow", "pattern"),
    "recent_memory": ("session", "summary", "message", "diary", "episode"),
    "verification": ("verification", "test", "result", "benchmark"),
}
KINDS: Final = MappingProxyType(
    {kind: facet for facet, kinds in _KINDS_BY_FACET.items() for kind in kinds}
)


# What `remember` stores without a kind.
DEFAULT_KIND: Final = "episode"


def facet_of(kind: str) -> str:
    """Return the facet of a kind; a kind that is not in the table is domain knowledge."""
    return KINDS.get(kind, "domain")


def known_kind(kind: str, *, is_quoted: bool) -> str:
    """Return a kind that is safe outside quotations: unknown kinds of others become `note`."""
    return "note" if is_quoted and kind not in KINDS else kind


# Intent → the facets it emphasizes, most important first, and those it de-emphasizes.
_FACETS_BY_INTENT: Final[dict[Intent, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "build": (
        ("active_work", "constraints", "decisions", "procedures", "gotchas", "artifacts"),
        ("ideation",),
    ),
    "plan": (
        ("planning", "active_work", "decisions", "constraints"),
        ("artifacts", "verification"),
    ),
    "ideate": (("ideation", "domain", "planning"), ("procedures", "verification", "active_work")),
    "research": (("domain", "artifacts", "ideation", "decisions"), ("active_work", "procedures")),
    "debug": (
        ("gotchas", "verification", "procedures", "active_work"),
        ("ideation", "planning"),
    ),
    "decide": (
        ("decisions", "constraints", "ideation", "verification"),
        ("active_work", "procedures"),
    ),
    "learn": (("domain", "procedures", "artifacts", "gotchas"), ("active_work", "planning")),
    "general": ((), ()),
}
INTENTS: Final = tuple(_FACETS_BY_INTENT)


class Emphasis(NamedTuple):
    """The weight of a facet under an intent: a factor on scores and a share of the pack."""

    factor: float
    share: float


# The factors are close together: an intent breaks ties between items that match about equally
# well, and must not lift weak matches over good ones.
_EMPHASIZED: Final = Emphasis(1.0, 0.4)
_PLAIN: Final = Emphasis(0.92, 0.25)
_DEEMPHASIZED: Final = Emphasis(0.84, 0.15)
_EVEN: Final = Emphasis(1.0, 0.3)


def emphasis(intent: Intent, facet: str) -> Emphasis:
    """Return the weight of a facet under an intent."""
    if intent == "general":
        return _EVEN
    emphasized, deemphasized = _FACETS_BY_INTENT[intent]
    if facet in emphasized:
        return _EMPHASIZED
    return _DEEMPHASIZED if facet in deemphasized else _PLAIN


def emphasized_facets(intent: str) -> tuple[str, ...]:
    """Return the facets that an intent emphasizes, most important first."""
    return next((facets for name, (facets, _) in _FACETS_BY_INTENT.items() if name == intent), ())


def section_order(intent: Intent) -> tuple[str, ...]:
    """Return all facets, those that the intent emphasizes first."""
    emphasized, deemphasized = _FACETS_BY_INTENT[intent]
    between = [f for f in FACETS if f not in emphasized and f not in deemphasized]
    return (*emphasized, *between, *deemphasized)


class Layer(NamedTuple):
    """The depth of a retrieval."""

    candidates: int  # items scored before the pack is chosen
    recency: float  # the largest part of a score that age can take away
    floor: float  # items below this fraction of the best score are left out
    excerpt_chars: int  # longer content is cut and marked `truncated`
    newest: int  # newest work and sessions that are added even if they do not match


LAYERS: Final[MappingProxyType[LayerName, Layer]] = MappingProxyType(
    {
        "wake": Layer(candidates=60, recency=0.3, floor=0.3, excerpt_chars=300, newest=4),
        "recall": Layer(candidates=200, recency=0.1, floor=0.1, excerpt_chars=2_000, newest=0),
        "deep_search": Layer(
            candidates=400, recency=0.0, floor=0.0, excerpt_chars=16_000, newest=0
        ),
    }
)

# Types of relations; the last is the type of a bare id.
RELATIONSHIPS: Final = (
    "supersedes",
    "contradicts",
    "requires",
    "supports",
    "decides",
    "related_to",
)
