"""Markdown of a plan within a token budget (M-45): points first, then what is missing.

Every section shows its best point before any shows its second one. Gaps and contradictions have a
third of the room at least, if they need it, and what the points leave. The lists are cut between
lines, and say how many lines are missing.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Final

from mcpp.tokens import estimate
from mcpp_agents.memory.markdown import MAX_LINE_CHARS, escaped_line, without_links

if TYPE_CHECKING:
    from mcpp_agents.memory.packing.plan import Contradiction, PlanPoint, PlanSection

_LISTED_SHARE: Final = 3
# For the note on omitted points, and for what joins the parts.
_NOTE_TOKENS: Final = 20
_MORE_TOKENS: Final = 10
_JOINT_TOKENS: Final = 2
_EXCERPT_CHARS: Final = 640
_BRIEF_CHARS: Final = 80


def render_plan(
    sections: Sequence["PlanSection"],
    gaps: Sequence[str],
    contradictions: Sequence["Contradiction"],
    hint: str,
    *,
    budget: int,
) -> str:
    """Return the Markdown of a plan with at most `budget` tokens, of which there are 200."""
    room = budget
    while True:
        markdown = _render(sections, gaps, contradictions, hint, room)
        # The parts may cost a little more together than one by one.
        excess = estimate(markdown) - budget
        if excess <= 0 or room <= 0:
            return markdown
        room -= excess


def _render(
    sections: Sequence["PlanSection"],
    gaps: Sequence[str],
    contradictions: Sequence["Contradiction"],
    hint: str,
    room: int,
) -> str:
    head = f"# Plan\n\n{hint}"
    room -= estimate(head) + _NOTE_TOKENS
    missing = [f"- {escaped_line(gap)}" for gap in gaps]
    disputed = list(map(_contradiction, contradictions))
    needed = _tokens("## Gaps", missing) + _tokens("## Contradictions", disputed)
    outline, used = _outline(sections, room, reserved=min(needed, room // _LISTED_SHARE))
    room -= used
    # Contradictions have half of what is left, or what the gaps do not need.
    half = max(room // 2, room - _tokens("## Gaps", missing))
    contradicted = _list("## Contradictions", disputed, half)
    listed = _list("## Gaps", missing, room - estimate(contradicted))
    blocks = [head, *outline, listed, contradicted]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _outline(
    sections: Sequence["PlanSection"], room: int, *, reserved: int
) -> tuple[list[str], int]:
    """Return the sections with the points that fit, and their tokens.

    The best point may use the room that is reserved for what follows.
    """
    # The words of the title may come from a pod, so they are quoted (M-26).
    headings = [
        f"## {number}\n\n> On: {escaped_line(section.title, _BRIEF_CHARS)}"
        for number, section in enumerate(sections, 1)
    ]
    shown: list[list[str]] = [[] for _ in sections]
    used = omitted = 0
    for rank in zip_longest(*(section.points for section in sections)):
        for place, point in enumerate(rank):
            if point is None:
                continue
            heading = 0 if shown[place] else estimate(headings[place])
            left = room - used - (reserved if used else 0)
            for text in (_point(point), _brief(point)):
                tokens = estimate(text) + heading + _JOINT_TOKENS
                if tokens <= left:
                    shown[place].append(text)
                    used += tokens
                    break
            else:
                omitted += 1
    blocks = [
        "\n\n".join((heading, "\n".join(points)))
        for heading, points in zip(headings, shown, strict=True)
        if points
    ]
    if omitted:
        blocks.append(f"{omitted} further points are in the plan's data.")
    return blocks, used


def _list(heading: str, lines: Sequence[str], room: int) -> str:
    """Return a list with the lines that fit, and how many do not; empty if not even that fits."""
    if not lines or _tokens(heading, lines) <= room:
        return "\n\n".join((heading, "\n".join(lines))) if lines else ""
    room -= _tokens(heading, ()) + _MORE_TOKENS
    shown: list[str] = []
    for line in lines:
        tokens = estimate(line) + 1
        if tokens > room:
            break
        room -= tokens
        shown.append(line)
    more = f"- … and {len(lines) - len(shown)} more" if shown else f"- {len(lines)}, not shown"
    return "\n\n".join((heading, "\n".join([*shown, more]))) if shown or room >= 0 else ""


def _tokens(heading: str, lines: Sequence[str]) -> int:
    return estimate(heading) + _JOINT_TOKENS + sum(estimate(line) + 1 for line in lines)


def _contradiction(one: "Contradiction") -> str:
    named = ", ".join(
        f"{id} “{without_links(escaped_line(name, _BRIEF_CHARS))}”"
        for id, name in zip(one.contradicted_by, one.names, strict=False)
    )
    more = len(one.contradicted_by) - len(one.names)
    rest = f" and {more} more" if more > 0 else ""
    name = without_links(escaped_line(one.name))
    return f"> - {name} ({one.id}) is contradicted by {named}{rest}"


def _point(point: "PlanPoint") -> str:
    """Return a point as a quotation: its text may come from a pod (M-26)."""
    source = f" · source: {without_links(escaped_line(point.source))}" if point.source else ""
    text = without_links(escaped_line(point.excerpt, _EXCERPT_CHARS))
    return f"{_citation(point)}\n  > {_title(point)}{source}\n  > {text}"


def _brief(point: "PlanPoint") -> str:
    """Return a point without its excerpt."""
    return f"{_citation(point)}\n  > {_title(point, _BRIEF_CHARS)}"


def _title(point: "PlanPoint", max_chars: int = MAX_LINE_CHARS) -> str:
    """Return the title after the author of what others wrote."""
    author = "" if point.author is None else f"From {without_links(escaped_line(point.author))}: "
    return f"{author}**{without_links(escaped_line(point.name, max_chars))}**"


def _citation(point: "PlanPoint") -> str:
    disputed = " · contradicted" if point.contradicted else ""
    date = f" · {point.valid_at[:10]}" if point.valid_at else ""
    return f"- [{point.id}]{date}{disputed}"
